"""How long the network model says gangs run, when it is told where and when they really ran.

Who starts beside whom is largely luck; this leaves only the question whether the model is right about links.
"""

from collections.abc import Sequence
from typing import cast

import msgspec
from live import Course
from prediction import jobs_of
from racks import Racks
from workload import Gang, sensitivity_of

from slimsched.jobs.domain import Placement
from slimsched.jobs.scheduler.messages import Command, Event, JobSubmitted, StartJob
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.simulated.cluster import Checkpoint, SimulatedJobs
from slimsched.jobs.telemetry import histories


class Script:
    """In place of a scheduler: every gang starts when it comes, where it really ran."""

    def __init__(self, placements: dict[str, Placement]) -> None:
        self._placements = placements

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        """Start whoever has come."""
        if isinstance(event, JobSubmitted):
            return [StartJob(job_id=event.job.id, placement=self._placements[event.job.id])]
        return []


def replay(racks: Racks, gangs: Sequence[Gang], courses: Sequence[Course]) -> list[tuple[float, float]]:
    """Seconds that each gang on several machines ran, measured and modelled, without those stopped."""
    jobs, placements = [], {}
    for job, gang, course in zip(jobs_of(racks, gangs, 1.0), gangs, courses, strict=True):
        if not course.stops:
            share = gang.gpus // len(course.machines)
            placements[job.id] = tuple((machine, share) for machine in course.machines)
            jobs.append(msgspec.structs.replace(job, arrival_s=course.started_s))
    simulation = SimulatedJobs(
        scheduler=cast(JobScheduler, Script(placements)),
        sensitivity=sensitivity_of(racks),
        jobs=jobs,
        checkpoint=Checkpoint(save_s=0.0, restore_s=0.0),
    )
    done = histories(simulation.run())
    return [
        (course.ended_s - course.started_s, done[job.id].jct_s)
        for job, course in ((job, courses[int(job.id)]) for job in jobs)
        if len(course.machines) > 1
    ]
