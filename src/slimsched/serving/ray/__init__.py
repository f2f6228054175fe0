"""Servers on several machines, placed and restarted by Ray."""
