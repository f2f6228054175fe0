"""FIFO and fit-first: jobs in order of arrival, with or without passing a job that does not fit."""

from slimsched.jobs.scheduling.policy import Policy


class Fifo(Policy):
    """Strict arrival order: nobody passes the first in line."""

    blocking = True
    obeys = True


class FitFirst(Policy):
    """Arrival order, but a job that fits may pass those that do not; any free GPUs will do."""
