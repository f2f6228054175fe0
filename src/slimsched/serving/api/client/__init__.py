"""Clients of a running server: one in Python, and a load generator."""
