"""Fit-first: arrival order, but whoever fits may pass those that do not."""

from slimsched.jobs.scheduling.policy import Policy


class FitFirst(Policy):
    """First come, first served among those that fit, placed wherever there is room."""

    name = "fit-first"
