"""Slim Scheduler: slimmable networks on unequal devices, training jobs on unequal networks."""

__version__ = "0.1.0"
