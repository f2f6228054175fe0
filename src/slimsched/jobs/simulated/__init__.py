"""The job scheduler in simulated time."""
