"""A trail: what a request went through where a plan's answer may be followed by that of a wider plan."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from slimsched.models.spec import Path

if TYPE_CHECKING:
    from slimsched.serving.domain.request import Request


class Trail(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The servers that keep a request's activations, and the answers it has so far.

    `homes` holds the server that ran each segment of the current path. `tried` holds the plans that have
    answered, oldest first. `confidence` is what the model said about the last answer, `sure` the chance that
    this answer is right, and `why` the reason to stop there or to go on. `hope` is the chance that the next
    answer will be right. `top` is the class that the last answer named, and `checked` says that the request
    goes on only to check this answer.
    """

    homes: tuple[int, ...] = ()
    tried: tuple[Path, ...] = ()
    confidence: float = -1.0
    sure: float = -1.0
    hope: float = -1.0
    why: str = ""
    top: int = -1
    checked: bool = False


NO_TRAIL = Trail()


def with_answer(requests: "Sequence[Request]") -> "tuple[list[Request], list[Request]]":
    """Split requests into those that have an answer already, at the plan of that answer, and the others."""
    done = [request.at_last_answer() for request in requests if request.trail and request.trail.tried]
    rest = [request for request in requests if not (request.trail and request.trail.tried)]
    return done, rest


def homes_of(requests: "Sequence[Request]") -> dict[int, list[int]]:
    """Return the requests whose activations each server keeps, by server."""
    kept: dict[int, list[int]] = {}
    for request in requests:
        if request.trail is not None:
            for home in set(request.trail.homes):
                kept.setdefault(home, []).extend(request.ids)
    return kept
