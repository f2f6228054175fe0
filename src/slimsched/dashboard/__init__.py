"""Looking at it: the live page of `slim serve`, and reports of runs."""
