"""What a job carries with it inside Slurm, so that we need no memory of our own.

The *request* stands in the job's comment, written once by whoever submits it, and makes the job ours.
The *memory* stands in its admin comment, written by the controller whenever it acts; a controller that
starts afresh reads it back.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from slimsched.jobs.domain import Placement
from slimsched.kernel.quantity import Finite, Seconds

_MARK = "slim"

Note = TypeVar("Note")


class Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user tells the scheduler beyond the number of GPUs."""

    model: str = ""
    tenant: str = ""
    service_s: Seconds = 0.0


class Memory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller must not forget about a job."""

    arrival_s: Finite | None = None  # Slurm's own submit time moves with every requeue
    served_s: Seconds = 0.0
    declined_since_s: Finite | None = None
    placement: Placement = ()  # where the job was last told to run


def written(note: Request | Memory) -> str:
    """The note as it stands in a comment."""
    return f"{_MARK} {msgspec.json.encode(note).decode()}"


def request_in(comment: str) -> Request | None:
    """The request in a comment (the bare word `slim` is one, with nothing to add); None: not our job."""
    mark, _, text = comment.partition(" ")
    return (_read(text, Request) or Request()) if mark == _MARK else None


def memory_in(admin_comment: str) -> Memory:
    """The memory in an admin comment; a fresh one where there is none."""
    mark, _, text = admin_comment.partition(" ")
    return (_read(text, Memory) or Memory()) if mark == _MARK else Memory()


def _read(text: str, kind: type[Note]) -> Note | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None
