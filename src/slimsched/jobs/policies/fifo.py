"""FIFO: strictly first come, first served; nobody passes the first in line."""

from slimsched.jobs.policy import Policy


class Fifo(Policy):
    """Strict arrival order."""

    name = "fifo"
    blocking = True
