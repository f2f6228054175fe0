"""Measuring devices, models and the simulator itself, on real servers."""
