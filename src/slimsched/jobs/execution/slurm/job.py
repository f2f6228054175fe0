"""A job as Slurm describes it."""

from enum import Enum

from msgspec import Struct

from slimsched.jobs.domain import gpu_count
from slimsched.jobs.execution.slurm.reply import Reply, number, words


class Status(Enum):
    """What a job is doing, as far as scheduling is concerned."""

    HELD = "held"
    QUEUED = "queued"  # released: Slurm will start it as soon as it can
    RUNNING = "running"
    ENDING = "ending"  # it has stopped, but its GPUs are not free yet
    GONE = "gone"


class SlurmJob(Struct, frozen=True, kw_only=True):
    """One job; times are Unix seconds, None where Slurm has none to give."""

    id: str
    status: Status
    state: str
    gpus: int
    per_task: bool = False  # it asked for GPUs by the task, which ties them to its tasks
    compound: bool = False  # part of a job array or of a heterogeneous job
    partition: str = ""
    user: str = ""
    name: str = ""
    comment: str = ""
    admin_comment: str = ""
    submit_s: float = 0.0
    eligible_s: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    limit_s: float | None = None
    restarts: int = 0
    requeue: bool = True
    nodes: str = ""
    shares: tuple[int, ...] = ()
    reason: str = ""

    @classmethod
    def from_reply(cls, reply: Reply) -> "SlurmJob":
        """One entry of `squeue --json`."""
        state = words(reply.get("job_state"))
        minutes = number(reply.get("time_limit"))
        return cls(
            id=str(reply["job_id"]),
            status=_status(state, held=number(reply.get("priority")) == 0),
            state="+".join(sorted(state)),
            gpus=_gpus(reply),
            per_task=gpu_count(reply.get("tres_per_task")) > 0,
            compound=bool(number(reply.get("array_job_id")) or number(reply.get("het_job_id"))),
            partition=reply.get("partition") or "",
            user=reply.get("user_name") or "",
            name=reply.get("name") or "",
            comment=reply.get("comment") or "",
            admin_comment=reply.get("admin_comment") or "",
            submit_s=number(reply.get("submit_time")) or 0.0,
            eligible_s=number(reply.get("eligible_time")) or None,
            start_s=number(reply.get("start_time")) or None,
            end_s=number(reply.get("end_time")) or None,
            limit_s=None if minutes is None else 60.0 * minutes,
            restarts=int(number(reply.get("restart_cnt")) or 0),
            requeue=bool(reply.get("requeue")),
            nodes=reply.get("nodes") or "",
            shares=tuple(gpu_count(detail) for detail in reply.get("gres_detail") or ()),
            reason=reply.get("state_reason") or "",
        )


def _status(state: frozenset[str], *, held: bool) -> Status:
    if "COMPLETING" in state:
        return Status.ENDING
    if state & {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING"}:
        return Status.RUNNING
    if state & {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
        return Status.HELD if held else Status.QUEUED
    return Status.GONE


def _gpus(reply: Reply) -> int:
    """GPUs the job asks for in all, however it asked."""
    in_all = gpu_count(reply.get("tres_per_job"))
    if in_all:
        return in_all
    per_node = gpu_count(reply.get("tres_per_node"))
    if per_node:
        return per_node * int(number(reply.get("node_count")) or 1)
    return gpu_count(reply.get("tres_per_task")) * int(number(reply.get("tasks")) or 1)
