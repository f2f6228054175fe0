"""What would happen on Slurm, without letting it happen: the dry run and the victim preview."""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.execution.slurm.client import SlurmClient
from slimsched.jobs.execution.slurm.controller import Entry, SlurmController
from slimsched.jobs.execution.slurm.dry_run import DryRunClient
from slimsched.jobs.execution.slurm.note import Memory
from slimsched.jobs.execution.slurm.observation import Observation
from slimsched.jobs.scheduling.commands import PreemptJob, StartJob, WakeAt
from slimsched.jobs.scheduling.events import JobPreempted, JobSubmitted
from slimsched.jobs.scheduling.explanation import Explanation

Make = Callable[[SlurmClient, Callable[[float, Entry], None]], SlurmController]
"""Makes a controller for a client and a recorder."""


class Plan(Struct, frozen=True, kw_only=True):
    """What the controller would do now, and the calls it would make."""

    commands: tuple[StartJob | PreemptJob, ...]
    calls: tuple[str, ...]


class Outlook(Struct, frozen=True, kw_only=True):
    """What it takes to start one gang now: whom to stop, where it then runs, or why it waits."""

    job: Job
    victims: tuple[str, ...]
    placement: Placement
    explanation: Explanation | None


def plan(client: SlurmClient, make: Make, seen: Observation) -> Plan:
    """One round of a fresh controller that only says what it would do."""
    dry = DryRunClient(client)
    entries: list[Entry] = []
    make(dry, lambda now_s, entry: entries.append(entry)).round(seen)
    commands = tuple(entry for entry in entries if isinstance(entry, StartJob | PreemptJob))
    return Plan(commands=commands, calls=tuple(dry.calls))


def explanation(client: SlurmClient, make: Make, seen: Observation, job_id: str) -> Explanation:
    """Why a job waits, or where it runs, in the eyes of a fresh controller."""
    controller = make(DryRunClient(client), lambda now_s, entry: None)
    controller.round(seen)
    assert controller.scheduler is not None
    return controller.scheduler.explain(job_id, now_s=seen.now_s)


def outlook(client: SlurmClient, make: Make, seen: Observation, job: Job) -> Outlook:
    """What a gang would get if it came last now: a job that waits already, or one that is only thought of."""
    others = {job_id: observed for job_id, observed in seen.jobs.items() if job_id != job.id}
    controller = make(DryRunClient(client), lambda now_s, entry: None)
    controller.round(msgspec.structs.replace(seen, jobs=others))
    scheduler, now_s = controller.scheduler, seen.now_s
    assert scheduler is not None
    memory = seen.jobs[job.id].memory if job.id in seen.jobs else Memory()
    commands = scheduler.handle(
        JobSubmitted(job=job, served_s=memory.served_s, declined_since_s=memory.declined_since_s), now_s=now_s
    )
    victims = tuple(command.job_id for command in commands if isinstance(command, PreemptJob))
    for victim in victims:
        served_s = scheduler.jobs[victim].service_s(now_s)
        commands += scheduler.handle(JobPreempted(job_id=victim, served_s=served_s), now_s=now_s)
    starts = [c for c in commands if not isinstance(c, PreemptJob | WakeAt) and c.job_id == job.id]
    return Outlook(
        job=job,
        victims=victims,
        placement=starts[0].placement if starts else (),
        explanation=None if starts else scheduler.explain(job.id, now_s=now_s),
    )
