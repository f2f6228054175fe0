"""What would happen on Slurm, without letting it happen: the dry run and the victim preview."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from slimsched.jobs.domain import Job, Placement
from slimsched.jobs.execution.slurm.client import SlurmClient, place_arguments
from slimsched.jobs.execution.slurm.controller import SlurmController
from slimsched.jobs.execution.slurm.note import Memory
from slimsched.jobs.execution.slurm.observation import Observation
from slimsched.jobs.scheduler.messages import JobPreempted, JobSubmitted, PreemptJob, StartJob
from slimsched.jobs.scheduler.scheduler import Explanation
from slimsched.kernel.observer import Observer

Make = Callable[[SlurmClient, Observer | None], SlurmController]
"""Makes a controller for a client, and for an observer if there is one."""


class DryRunClient(SlurmClient):
    """Collects the commands it would have run in `calls`; remembers nothing in Slurm."""

    def __init__(self, client: SlurmClient) -> None:
        super().__init__(conf=client.conf, timeout_s=client.timeout_s)
        self.calls: list[str] = []

    def place(self, job_id: str, placement: Placement, memory: Memory) -> None:
        """Say where a held job would be bound to."""
        self.calls.append(" ".join(["scontrol", *place_arguments(job_id, placement)]))

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write nothing."""

    def release(self, job_id: str) -> None:
        """Say that a held job would be released."""
        self.calls.append(f"scontrol release {job_id}")

    def hold(self, job_id: str) -> None:
        """Say that a waiting job would be held."""
        self.calls.append(f"scontrol hold {job_id}")

    def requeue_held(self, job_id: str) -> None:
        """Say that a running job would be stopped."""
        self.calls.append(f"scontrol requeuehold Incomplete {job_id}")


class _Commands:
    """An observer that keeps the commands."""

    def __init__(self) -> None:
        self.seen: list[Struct] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Keep the commands of one entry."""
        self.seen += commands


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
    asked = _Commands()
    make(dry, asked).round(seen)
    commands = tuple(command for command in asked.seen if isinstance(command, StartJob | PreemptJob))
    return Plan(commands=commands, calls=tuple(dry.calls))


def explanation(client: SlurmClient, make: Make, seen: Observation, job_id: str) -> Explanation:
    """Why a job waits, or where it runs, in the eyes of a fresh controller."""
    controller = make(DryRunClient(client), None)
    controller.round(seen)
    assert controller.scheduler is not None
    return controller.scheduler.explain(job_id, now_s=seen.now_s)


def outlook(client: SlurmClient, make: Make, seen: Observation, job: Job) -> Outlook:
    """What a gang would get if it came last now: a job that waits already, or one that is only thought of."""
    others = {job_id: observed for job_id, observed in seen.jobs.items() if job_id != job.id}
    controller = make(DryRunClient(client), None)
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
    starts = [c for c in commands if isinstance(c, StartJob) and c.job_id == job.id]
    return Outlook(
        job=job,
        victims=victims,
        placement=starts[0].placement if starts else (),
        explanation=None if starts else scheduler.explain(job.id, now_s=now_s),
    )
