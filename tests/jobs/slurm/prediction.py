"""What the simulator says would have happened, from a controller's log of what did."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from jobs.workloads import news
from slimsched.jobs.domain import Job, Machine, Placement, Topology, fabric_named
from slimsched.jobs.policies.dally import Dally
from slimsched.jobs.scheduler.gpus import FreeGpus, split
from slimsched.jobs.scheduler.messages import (
    Command,
    Event,
    JobFinished,
    JobFoundRunning,
    JobSubmitted,
    Rebuilt,
    StartJob,
)
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.scheduler import JobScheduler, Split
from slimsched.jobs.simulated.cluster import SimulatedJobs
from slimsched.jobs.telemetry import JobEntry
from slimsched.jobs.traces.models import TRAINING_MODELS

RACKS = Topology(
    [Machine(name=f"n{i}", rack=f"rack{1 + (i > 4)}", gpus=8) for i in range(1, 9)], name="throw-away Slurm"
)
APART_S = 0.02
"""Events of one round are told one after the other; in the simulator this keeps them in order."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """When a gang came, started and ended, and where it ran, in the scheduler's seconds."""

    job: Job
    arrival_s: float
    start_s: float
    end_s: float
    placement: Placement

    @property
    def wait_s(self) -> float:
        return self.start_s - self.arrival_s


def measured(entries: Iterable[JobEntry]) -> dict[str, Course]:
    """The course of every gang, from the controller's log."""
    courses: dict[str, dict[str, Any]] = {}
    last_s = at_s = 0.0
    for now_s, event, commands in entries:
        at_s = max(now_s, at_s + APART_S if now_s <= last_s else 0.0)
        last_s = now_s
        if isinstance(event, JobSubmitted):
            courses.setdefault(event.job.id, {"job": event.job, "arrival_s": at_s})
        elif isinstance(event, JobFoundRunning):
            course = courses[event.job.id]
            course["placement"] = event.placement
            course.pop("end_s", None)
        elif isinstance(event, JobFinished):
            courses[event.job_id]["end_s"] = at_s
        elif isinstance(event, Rebuilt):  # who is not found running now has just ended
            for course in courses.values():
                if "start_s" in course:
                    course.setdefault("end_s", at_s)
        for command in commands:
            if isinstance(command, StartJob):
                courses[command.job_id] |= {"start_s": at_s, "placement": command.placement}
    return {job_id: Course(**fields) for job_id, fields in courses.items()}


def predicted(courses: Mapping[str, Course]) -> dict[str, Course]:
    """The simulator's course of the same gangs.

    It is told when each gang came, for how long it held its GPUs, and how Slurm shared them out over the
    machines; when and where each starts is for the policy to decide.
    """

    def as_slurm_did(job_id: str, placement: Placement, free: FreeGpus) -> Placement:
        real = courses[job_id].placement
        same = {name for name, _ in real} == {name for name, _ in placement}
        return real if same and _fits(real, free) else split(job_id, placement, free)

    scheduler = _scheduler(Dally(), as_slurm_did, AsSlurmTellsIt)
    jobs = [
        msgspec.structs.replace(c.job, arrival_s=c.arrival_s, service_s=c.end_s - c.start_s)
        for c in courses.values()
    ]
    # how long a gang ran is known already: let no simulated network slow it down once more
    no_network = Sensitivity(topology=RACKS, fabric=fabric_named("congested"))
    log = SimulatedJobs(scheduler=scheduler, sensitivity=no_network, jobs=jobs).run()
    starts = {
        entry.job_id: (at_s, entry.placement) for at_s, entry in news(log) if isinstance(entry, StartJob)
    }
    ends = {entry.job_id: at_s for at_s, entry in news(log) if isinstance(entry, JobFinished)}
    return {
        job.id: Course(
            job=job,
            arrival_s=job.arrival_s,
            start_s=starts[job.id][0],
            end_s=ends[job.id],
            placement=starts[job.id][1],
        )
        for job in jobs
    }


def _scheduler(policy: Dally, how: Split, kind: type[JobScheduler] = JobScheduler) -> JobScheduler:
    sensitivity = Sensitivity(topology=RACKS, fabric=fabric_named("congested"), models=TRAINING_MODELS)
    return kind(topology=RACKS, policy=policy, sensitivity=sensitivity, split=how)


class AsSlurmTellsIt(JobScheduler):
    """A scheduler that is told no more than on Slurm: a job has gone, and not how far it came."""

    def handle(self, event: Event, *, now_s: float) -> list[Command]:
        match event:
            case JobFinished(job_id=job_id):
                event = JobFinished(job_id=job_id)
            case JobSubmitted(job=job):
                event = JobSubmitted(job=msgspec.structs.replace(job, service_s=0.0))
        return super().handle(event, now_s=now_s)


def _fits(placement: Placement, free: FreeGpus) -> bool:
    return all(free.by_machine[free.index[name]] >= gpus for name, gpus in placement)
