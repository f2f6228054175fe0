"""A policy as a user would write one, in a file of its own."""

from slimsched.jobs.scheduler.policy import Policy, Timers
from slimsched.jobs.scheduler.waiting import JobState, Key


class LargestFirst(Policy):
    """The widest gang first, after it has held out for its closest tier for a while."""

    reorders = True

    def __init__(self, *, patience_s: float = 0.0) -> None:
        self.patience_s = patience_s

    def key(self, job: JobState, now_s: float) -> Key:
        return (-job.gpus, job.job.arrival_s)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        return (self.patience_s, self.patience_s)
