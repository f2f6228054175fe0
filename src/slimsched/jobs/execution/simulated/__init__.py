"""Jobs in simulated time."""
