"""Requests and what becomes of them: keys that batches share, blocks on their way, batches, trails, reasons.

A request: an example, or several neighbours of one call, on its way through the segments of a model.
"""

from collections.abc import Container, Iterator, Sequence, Set
from enum import StrEnum
from functools import lru_cache
from itertools import groupby
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from slimsched.models.spec import ANY, Path, Step


class Trail(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """The servers that keep a request's activations, and the answers it has so far.

    A request has one where a plan's answer may be followed by that of a wider plan.
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


class RequestsCancelled(Struct, frozen=True, kw_only=True, tag=True):
    """Event for gateway and servers: nobody waits for these requests any more; do not begin them."""

    requests: tuple[int, ...]


class DropReason(StrEnum):
    """All reasons for which a request is dropped; the reply to a client depends only on these."""

    QUEUE_FULL = "queue full"
    OVERLOADED = "too much work is ahead to meet the deadline"
    DEADLINE_PASSED = "deadline passed"
    DEADLINE_OUT_OF_REACH = "deadline out of reach"
    CANCELLED = "cancelled"
    EXECUTION_FAILED = "execution failed"
    NO_SERVER = "no server is left"
    SHUTTING_DOWN = "shutting down"

    @property
    def outcome(self) -> "Outcome":
        """What became of a request that was dropped for this reason."""
        if self is DropReason.DEADLINE_PASSED:
            return "late"
        return "failed" if self in (DropReason.CANCELLED, DropReason.EXECUTION_FAILED) else "refused"


Outcome = Literal["in_time", "late", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("in_time", "late", "refused", "failed")
"""What becomes of every request that is offered: together they are all of them, but those under way."""


class Key(Struct, frozen=True, cache_hash=True, order=True, array_like=True):
    """The key k = (segment, requested choice, previous choice): what must agree to run as one batch.

    With several models a key also names its model. In the paper a choice is a width.

    `previous` is the choice of the segment before. It is START in the first segment, and ANY in models for
    which it does not matter. With choices `ahead`, a batch goes on through further segments on the same
    server without asking the router, as long as the server has a free instance for each.
    """

    segment: int
    choice: int
    previous: int
    ahead: Path = ()
    model: int = 0

    def __str__(self) -> str:
        after = "" if self.previous < 0 else f" after {self.previous}"
        onward = "".join(f", then {choice}" for choice in self.ahead)
        model = f"model {self.model}, " if self.model else ""
        return f"{model}segment {self.segment} at choice {self.choice}{after}{onward}"

    @property
    def choices(self) -> Path:
        """The choices of all segments that this key runs."""
        return (self.choice, *self.ahead)

    @property
    def last_segment(self) -> int:
        """The last segment that this key runs."""
        return self.segment + len(self.ahead)

    @property
    def step(self) -> Step:
        """The first step that this key runs."""
        return self.segment, self.choice, self.previous

    @property
    def place(self) -> tuple[int, int, int]:
        """(model, segment, choice) that an instance must be loaded for."""
        return self.model, self.segment, self.choice

    @property
    def legs(self) -> "tuple[Key, ...]":
        """One key per segment, without choices ahead."""
        return _legs(self) if self.ahead else (self,)

    def at(self, choice: int) -> "Key":
        """Return the same key at another choice, without choices ahead."""
        return key_of(self.model, self.segment, choice, self.previous)


MOST_KEYS = 4096
"""How many keys are cached."""


@lru_cache(MOST_KEYS)
def key_of(model: int, segment: int, choice: int, previous: int) -> Key:
    """Return the key of one segment."""
    return Key(segment, choice, previous, (), model)


@lru_cache(MOST_KEYS)
def onward(key: Key, ahead: Path) -> Key:
    """Return this key with the choices `ahead`."""
    return Key(key.segment, key.choice, key.previous, ahead, key.model) if ahead else key


@lru_cache(MOST_KEYS)
def _legs(key: Key) -> tuple[Key, ...]:
    before = (ANY,) * len(key.choices) if key.previous == ANY else (key.previous, *key.choices)
    return tuple(
        key_of(key.model, key.segment + number, choice, before[number])
        for number, choice in enumerate(key.choices)
    )


class Why(Struct, frozen=True, array_like=True, gc=False):
    """What a routing decision was weighed against; `telemetry/stories.py` makes sentences of it.

    `binding` is the limit of the goal that decides now, 'load' if only the load does, or empty if device time
    is free. `worth` is the accuracy within reach after this choice, `cost_s` the device time per example of
    the rest of the plan, as the router expects it. The runner-up was `server` at `choice` (-1: there was
    none); it was `behind` by so much, in accuracy.
    """

    binding: str = ""
    worth: float = 0.0
    cost_s: float = 0.0
    server: int = -1
    choice: int = -1
    behind: float = 0.0


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


Requests = tuple[Request, ...]


def count_examples(requests: Sequence[Request]) -> int:
    """Count the examples of these requests."""
    return requests[0].count if len(requests) == 1 else sum([request.count for request in requests])


def ids_of(requests: Sequence[Request]) -> list[int]:
    """List the ids of all examples, in order."""
    ids: list[int] = []
    for request in requests:
        if request.count == 1:
            ids.append(request.id)  # a range takes longer
        else:
            ids.extend(request.ids)
    return ids


def each_example(requests: Sequence[Request]) -> list[Request]:
    """List the examples as requests of their own, in order."""
    return [example for request in requests for example in request.each()]


def split_after(requests: Sequence[Request], size: int) -> tuple[Requests, Requests]:
    """Split requests after a number of examples; a request that goes across is split too."""
    left = size
    for at, request in enumerate(requests):
        if request.count > left:
            before, after = tuple(requests[:at]), tuple(requests[at + 1 :])
            if not left:
                return before, (request, *after)
            return (*before, request.part(0, left)), (request.part(left, request.count), *after)
        left -= request.count
    return tuple(requests), ()


def split_by(requests: Sequence[Request], ids: Container[int]) -> tuple[Requests, Requests]:
    """Split requests into the examples with these ids, and the others."""
    chosen: list[Request] = []
    others: list[Request] = []
    for request in requests:
        if request.count == 1:
            (chosen if request.id in ids else others).append(request)
            continue
        start = 0
        for is_chosen, numbers in groupby([number in ids for number in request.ids]):
            end = start + len(list(numbers))
            (chosen if is_chosen else others).append(
                request if end - start == request.count else request.part(start, end)
            )
            start = end
    return tuple(chosen), tuple(others)


class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a sender asks for besides the answer; 0: no floor or ceiling. Deadlines count from arrival."""

    deadline_s: float = NEVER_S
    priority: int = 0
    min_accuracy: float = 0.0
    max_energy_j: float = 0.0
    plan: int = NO_PLAN

    def request(
        self, number: int, now_s: float, model: int = 0, *, example: int = -1, count: int = 1
    ) -> Request:
        """Make a request of `count` examples on these terms, which arrives now."""
        return Request(
            id=number,
            arrival_s=now_s,
            deadline_s=min(NEVER_S, now_s + self.deadline_s),
            min_accuracy=self.min_accuracy,
            priority=self.priority,
            example=example,
            plan=self.plan,
            max_energy_j=self.max_energy_j,
            model=model,
            count=count,
        )


ANY_TERMS = Terms()


class Block(Struct, frozen=True, kw_only=True, array_like=True):
    """Requests with one key that the router sends to one server together.

    A server may split it over batches; the parts keep its id.

    `priority` is the highest and `deadline_s` the earliest of its requests. With `keep`, the server keeps
    what every segment gives until it is told to forget, because a wider plan may go on from there.
    """

    id: int
    key: Key
    requests: tuple[Request, ...]
    deadline_s: float
    priority: int = 0
    keep: bool = False

    @property
    def examples(self) -> int:
        """How many examples its requests have."""
        return count_examples(self.requests)

    @property
    def ids(self) -> list[int]:
        """The ids of its examples."""
        return ids_of(self.requests)

    def split(self, size: int) -> "tuple[Block, Block]":
        """Split the block after `size` examples."""
        first, rest = split_after(self.requests, size)
        return replace(self, requests=first), replace(self, requests=rest)

    def split_off(self, ids: Set[int]) -> "tuple[Block | None, Block | None]":
        """Split the block into the examples with these ids and the rest; None for an empty part."""
        if ids.isdisjoint(ids_of(self.requests)):
            return None, self
        chosen, rest = split_by(self.requests, ids)
        return replace(self, requests=chosen), replace(self, requests=rest) if rest else None


def block_of(block_id: int, key: Key, requests: tuple[Request, ...], *, keep: bool = False) -> Block:
    """Make a block that is as urgent as its most urgent requests."""
    if len(requests) == 1:
        deadline_s, priority = requests[0].deadline_s, requests[0].priority
    else:
        deadline_s = min([request.deadline_s for request in requests])
        priority = max([request.priority for request in requests])
    return Block(id=block_id, key=key, requests=requests, deadline_s=deadline_s, priority=priority, keep=keep)


class Batch(Struct, frozen=True, kw_only=True):
    """Blocks (or parts of them) that run together on an instance, at the choice of `key`.

    A batch that runs several segments holds one instance per segment: `instance`, then `also`. Its blocks may
    have asked for more segments.
    """

    id: int
    key: Key
    instance: int
    blocks: tuple[Block, ...]
    size: int
    also: tuple[int, ...] = ()
