"""The serving cluster in simulated time."""
