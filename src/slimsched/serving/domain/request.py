"""A request: an example, or several neighbours of one call, on its way through the segments of a model."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slimsched.models.spec import Path
from slimsched.serving.domain.trail import NO_TRAIL, Trail

NO_PLAN = -1
"""Used instead of a plan's number: the router chooses."""

NEVER_S = 1e18
"""A deadline that never comes; finite, so that JSON can hold it."""


class Request(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """One example and what its sender asks for; `path` holds the choices of the segments that have run.

    Examples of one call that are alike stay one request while they go the same way: it has the ids `id` to
    `id + count - 1`. It is split where a part of it goes another way.

    `example` is the index in a known dataset, if any, of a single example. `plan` is the number of the plan
    that the sender stated. `trail` is kept where the router may go on with a wider plan after an answer.
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
    trail: Trail | None = None
    count: int = 1

    @property
    def ids(self) -> range:
        """The ids of its examples."""
        return range(self.id, self.id + self.count)

    @property
    def segment(self) -> int:
        """The segment that comes next."""
        return len(self.path)

    @property
    def has_terms(self) -> bool:
        """Whether its sender limits what the router may choose."""
        return bool(self.min_accuracy or self.plan >= 0 or self.max_energy_j)

    def part(self, start: int, end: int) -> "Request":
        """Return some of its examples as a request of their own."""
        return replace(self, id=self.id + start, count=end - start)

    def each(self) -> "Sequence[Request]":
        """Return its examples as requests of their own."""
        return (self,) if self.count == 1 else [self.part(at, at + 1) for at in range(self.count)]

    def after(self, choices: Path) -> "Request":
        """Return the request after its next segments have run at these choices."""
        return replace(self, path=self.path + choices)

    def after_at(self, choices: Path, server: int) -> "Request":
        """Return the request after its next segments have run on a server that keeps what they gave."""
        trail = self.trail or NO_TRAIL
        homes = (*trail.homes, *[server] * len(choices))
        return replace(self, path=self.path + choices, trail=replace(trail, homes=homes))

    def judged(self, **verdict: object) -> "Request":
        """Return the request with what was found out about its answer."""
        return replace(self, trail=replace(self.trail or NO_TRAIL, **verdict))

    def going_on(self, kept: int) -> "Request":
        """Return the request back at the activation after `kept` segments, on its way to a wider plan."""
        trail = self.trail or NO_TRAIL
        trail = replace(trail, homes=trail.homes[:kept], tried=(*trail.tried, self.path))
        return replace(self, path=self.path[:kept], trail=trail)

    def at_last_answer(self, why: str = "the wider plan could not run") -> "Request":
        """Return the request at the plan of its last answer, and why it is not at the plan after it."""
        assert self.trail is not None
        trail = replace(self.trail, tried=self.trail.tried[:-1], why=why)
        return replace(self, path=self.trail.tried[-1], trail=trail)

    def restarted(self) -> "Request":
        """Return the request as it was at the start, because its activation is lost."""
        return replace(self, path=(), trail=None)


def alike(requests: Sequence[Request]) -> Sequence[tuple[Request, int]]:
    """Group equal neighbours (arrival, deadline, path, model, trail); return each group's first and examples.

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
            and request.trail == first.trail
        ):
            count += request.count
        else:
            yield first, count
            first, count = request, request.count
    yield first, count
