"""Learned routers: the paper's PPO, the training of the goal router, and a Gymnasium environment."""
