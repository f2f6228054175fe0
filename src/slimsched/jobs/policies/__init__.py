"""Policies of the job scheduler: in which order jobs start, and who makes room for whom."""
