"""The seam between job schedulers and those who drive them."""

from typing import Protocol

from slimsched.jobs.commands import Command
from slimsched.jobs.events import Event
from slimsched.jobs.explanation import Explanation


class JobScheduler(Protocol):
    """A pure state machine: an event and a time go in, commands come out."""

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Take one event into account and return what must now be done."""
        ...

    def explain(self, job_id: str, *, now_s: float) -> Explanation:
        """Say why a job waits, or where it runs."""
        ...
