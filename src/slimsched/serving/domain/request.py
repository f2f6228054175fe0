"""A request: one example on its way through the segments of a model."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slimsched.models.spec import Path

NO_PLAN = -1
"""Used instead of a plan's number: the router chooses."""

NEVER_S = 1e18
"""A deadline that never comes; finite, so that JSON can hold it."""


class Request(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """One example and what its sender asks for; `path` holds the choices of the segments that have run.

    `example` is its index in a known dataset, if any. `plan` is the number of the plan that the sender
    stated.
    """

    id: int
    arrival_s: float
    deadline_s: float = NEVER_S
    min_accuracy: float = 0.0
    priority: int = 0
    example: int = -1
    path: Path = ()
    plan: int = NO_PLAN
    max_energy_j: float = 0.0  # 0: no limit
    model: int = 0

    @property
    def segment(self) -> int:
        """The segment that comes next."""
        return len(self.path)

    @property
    def has_terms(self) -> bool:
        """Whether its sender limits what the router may choose."""
        return bool(self.min_accuracy or self.plan >= 0 or self.max_energy_j)

    def after(self, choices: Path) -> "Request":
        """Return the request after its next segments have run at these choices."""
        return replace(self, path=self.path + choices)

    def restarted(self) -> "Request":
        """Return the request as it was at the start, because its activation is lost."""
        return replace(self, path=())


def alike(requests: Sequence[Request]) -> Sequence[tuple[Request, int]]:
    """Group equal neighbours (arrival, deadline, path, model); return the first of each group and its size.

    Several readers of the log ask about the same requests one after the other, so the last answer is kept.
    """
    global _last
    if _last[0] is not requests:
        _last = requests, list(_grouped(requests))
    return _last[1]


_last: tuple[Sequence[Request], list[tuple[Request, int]]] = ((), [])


def _grouped(requests: Sequence[Request]) -> Iterator[tuple[Request, int]]:
    first, count = requests[0], 0
    for request in requests:
        if (
            request.arrival_s == first.arrival_s
            and request.deadline_s == first.deadline_s
            and request.path == first.path
            and request.model == first.model
        ):
            count += 1
        else:
            yield first, count
            first, count = request, 1
    yield first, count
