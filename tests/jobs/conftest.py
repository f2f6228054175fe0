"""In the tests of jobs, every scheduler checks after each event that all it keeps agrees."""

from collections.abc import Iterator

import pytest

from slimsched.jobs.scheduler.messages import Command, Event
from slimsched.jobs.scheduler.scheduler import JobScheduler

SMALL_MACHINES = 16
"""Larger clusters are checked after one event in fifty only: a check looks at every job and machine."""


@pytest.fixture(autouse=True, scope="session")
def checked_schedulers() -> Iterator[None]:
    """Let every job scheduler of these tests validate itself."""
    handle = JobScheduler.handle
    events = 0

    def checked(self: JobScheduler, event: Event, *, now_s: float) -> list[Command]:
        nonlocal events
        events += 1
        commands = handle(self, event, now_s=now_s)
        if len(self.topology.machines) <= SMALL_MACHINES or events % 50 == 0:
            self.validate()
        return commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobScheduler, "handle", checked)
        yield
