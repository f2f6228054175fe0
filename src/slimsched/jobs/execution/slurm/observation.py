"""One look at Slurm: which jobs are ours, where they run, and which GPUs we may give away."""

from collections.abc import Mapping

from msgspec import Struct

from slimsched.jobs.domain import Job, Machine, Placement, gpus_in
from slimsched.jobs.execution.slurm.client import SlurmClient
from slimsched.jobs.execution.slurm.job import SlurmJob, Status
from slimsched.jobs.execution.slurm.note import Memory, Request, memory_in, request_in


class Clock(Struct, frozen=True, kw_only=True):
    """The scheduler's time: Unix seconds, `speed` times as fast (above 1 for demos with short jobs)."""

    speed: float = 1.0

    def at(self, unix_s: float) -> float:
        """The scheduler's time at a Unix time."""
        return unix_s * self.speed

    def unix_s(self, at_s: float) -> float:
        """The Unix time of a scheduler's time."""
        return at_s / self.speed


class ObservedJob(Struct, frozen=True, kw_only=True):
    """A job of ours: as Slurm has it, as the scheduler is told of it, and where it runs since when."""

    slurm: SlurmJob
    job: Job
    memory: Memory
    placement: Placement = ()
    since_s: float | None = None

    @property
    def waits(self) -> bool:
        """Whether it has no GPUs and wants some."""
        return self.slurm.status in (Status.HELD, Status.QUEUED)


class Observation(Struct, frozen=True, kw_only=True):
    """What Slurm said at one time, `unix_s` on the wall and `now_s` for the scheduler.

    `machines` are those we may use now, each with the GPUs that are not in strangers' hands; `refused`
    says of jobs that want to be ours why they cannot be.
    """

    unix_s: float
    now_s: float
    jobs: Mapping[str, ObservedJob]
    machines: tuple[Machine, ...]
    refused: Mapping[str, str]


def observe(
    client: SlurmClient, *, racks: Mapping[str, str], partition: str | None, unix_s: float, clock: Clock
) -> Observation:
    """Ask Slurm for its jobs and machines.

    On a machine that is draining or down we count just what our jobs still hold there.
    """
    ours: dict[str, ObservedJob] = {}
    refused: dict[str, str] = {}
    held: dict[str, int] = {}
    strange: dict[str, int] = {}
    for slurm in client.jobs():
        placement = client.placement(slurm) if slurm.status in (Status.RUNNING, Status.ENDING) else ()
        request = request_in(slurm.comment) if partition in (None, slurm.partition) else None
        why_not = _why_not(slurm)
        if request is not None and not why_not:
            ours[slurm.id] = _observed(slurm, request, placement, clock)
        elif request is not None and slurm.status is not Status.GONE:
            refused[slurm.id] = why_not
        count = held if slurm.id in ours else strange
        for name, gpus in placement:
            count[name] = count.get(name, 0) + gpus
    machines: list[Machine] = []
    for node in client.nodes():
        if partition is None or partition in node.partitions:
            left = node.gpus - strange.get(node.name, 0) if node.usable else held.get(node.name, 0)
            if left > 0:
                machines.append(Machine(name=node.name, rack=racks.get(node.name, "rack"), gpus=left))
    return Observation(
        unix_s=unix_s, now_s=clock.at(unix_s), jobs=ours, machines=tuple(machines), refused=refused
    )


def _why_not(slurm: SlurmJob) -> str:
    """Why a job cannot be placed by us; empty if it can."""
    if slurm.compound:
        return "it is part of a job array or a heterogeneous job; submit each gang as a job of its own"
    if slurm.per_task:
        return "it asks for GPUs by the task; submit it with --gpus=N so that it can be placed freely"
    if not slurm.gpus:
        return "it asks for no GPUs; submit it with --gpus=N"
    if not slurm.requeue:
        return "it may not be requeued; submit it with --requeue"
    return ""


def _observed(slurm: SlurmJob, request: Request, placement: Placement, clock: Clock) -> ObservedJob:
    memory = memory_in(slurm.admin_comment)
    job = Job(
        id=slurm.id,
        arrival_s=clock.at(slurm.submit_s) if memory.arrival_s is None else memory.arrival_s,
        gpus=gpus_in(memory.placement) or slurm.gpus,
        service_s=request.service_s,
        model=request.model,
        tenant=request.tenant or slurm.user,
        limit_s=None if slurm.limit_s is None else clock.at(slurm.limit_s),
    )
    since_s = None if slurm.start_s is None else clock.at(slurm.start_s)
    return ObservedJob(slurm=slurm, job=job, memory=memory, placement=placement, since_s=since_s)
