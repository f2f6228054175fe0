"""Learned routers: the paper's PPO, how the goal router is trained, and an environment to try both in."""
