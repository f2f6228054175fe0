"""The simulated driver: the same gateway and schedulers as live, in simulated time."""
