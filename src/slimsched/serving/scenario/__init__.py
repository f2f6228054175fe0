"""Scenarios: a cluster, its models, the load on it and how it is run, read from files."""
