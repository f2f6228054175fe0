"""Local scheduling on one server: the greedy machine of Algorithm 1. Pure."""
