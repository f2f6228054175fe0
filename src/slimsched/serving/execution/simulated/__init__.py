"""Simulated execution: the real gateway and schedulers, in virtual time."""
