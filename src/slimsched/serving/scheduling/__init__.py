"""The local decision: the greedy machine of Algorithm 1. Pure."""
