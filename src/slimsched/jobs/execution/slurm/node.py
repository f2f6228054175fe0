"""A machine as Slurm describes it."""

from msgspec import Struct

from slimsched.jobs.domain import gpu_count
from slimsched.jobs.execution.slurm.reply import Reply, words

_UNUSABLE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "MAINT",
     "NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN", "INVAL", "INVALID_REG",
     "REBOOT", "REBOOT_REQUESTED", "PLANNED_DOWN"}
)  # fmt: skip


class SlurmNode(Struct, frozen=True, kw_only=True):
    """A machine, its GPUs, and whether Slurm may start jobs on it."""

    name: str
    gpus: int
    usable: bool
    partitions: tuple[str, ...] = ()

    @classmethod
    def from_reply(cls, reply: Reply) -> "SlurmNode":
        """One entry of `sinfo --json`."""
        state = words(reply.get("state")) | words(reply.get("state_flags"))
        return cls(
            name=reply["name"],
            gpus=gpu_count(reply.get("gres")),
            usable=not state & _UNUSABLE,
            partitions=tuple(reply.get("partitions") or ()),
        )
