"""The dashboard: the live page of `slim serve`, and the reports of runs."""
