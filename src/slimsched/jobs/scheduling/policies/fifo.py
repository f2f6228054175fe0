"""FIFO: strictly first come, first served; nobody passes the first in line."""

from slimsched.jobs.scheduling.policy import Policy


class Fifo(Policy):
    """Strict arrival order."""

    name = "fifo"
    blocking = True
