"""The live page of `slim serve`, and reports of runs of both products."""
