"""The live view: follows the event log and can give a frame at any moment.

A frame is everything that a dashboard shows at one moment. The view keeps recent figures as running sums, and
for each open request where it is; a recorder keeps frames at regular times for a report.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from math import log
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.core.log import Log
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY, GATEWAY_NAME, Cluster, ServerSnapshot
from slimsched.serving.domain.model import ModelOutline, ModelsChanged, ServedModel, outlines
from slimsched.serving.domain.request import Block, Request, alike, count_examples, ids_of
from slimsched.serving.gateway.goal import format_goals
from slimsched.serving.gateway.messages import (
    Answer,
    Command,
    Drop,
    Event,
    GoalChanged,
    InputLost,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.gateway.stop_when_sure import DISTRUST, SURE
from slimsched.serving.routers.autoscaler import LoadReported, Scale
from slimsched.serving.telemetry.stories import explain_route

# -- A frame: everything a dashboard shows at one moment, as one small JSON object.


class ServerFrame(Struct, frozen=True, kw_only=True):
    """One server: how many of the gateway's requests it has by stage, and its own last report.

    `choices` are the shares of recent examples that ran at each choice, in the order of the frame's `names`.
    While a server is down its own figures are 0. `given_up` says that it cannot be started.
    """

    name: str
    up: bool
    given_up: bool
    at: tuple[int, ...]
    queued: int
    instances: int
    utilization: float
    power_w: float
    vram_bytes: int
    choices: tuple[float, ...]
    examples_per_s: float


class Decision(Struct, frozen=True, kw_only=True):
    """A route that the router chose, and why."""

    at_s: float
    server: str
    stage: str
    choice: str
    examples: int
    reason: str


class Happening(Struct, frozen=True, kw_only=True):
    """Something worth showing; charts mark servers that went down or came back, and changes of the goal."""

    at_s: float
    text: str
    kind: Literal["down", "up", "goal", "note"] = "note"


class Limit(Struct, frozen=True, kw_only=True):
    """A limit of the goal as a user writes it, and whether it is kept now."""

    text: str
    kept: bool


class Frame(Struct, frozen=True, kw_only=True):
    """Totals since the start, figures over the last seconds, the servers, and the last decisions.

    A stage is one segment of one model. `stages` holds the labels of all stages, `stage_models` the number of
    each stage's model, and `stage_choices` its choices as indices into `names`. `names` holds the names of
    all choices, narrow to wide. `waiting` counts the requests in the central queue by their next stage.
    `finished_per_s` is how many examples per second passed each stage, and `mix` holds the shares of choices
    in each stage. `guard` counts the blocks that the guard of the goal router decided about, by reason;
    `judged` counts answers by why they were sent, where the router judges them. `bound_accuracy` is the fluid
    bound of routers that do not look at examples, `sure_bound_accuracy` that of routers that stop when sure.
    `limits` are those of the goal, in the order in which they yield, where a running router follows one.
    A figure is None while there is nothing to compute it from.
    """

    at_s: float
    phase: str
    router: str
    arrived: int
    answered: int
    dropped: int
    waiting: tuple[int, ...]
    finished_per_s: tuple[float, ...]
    arrival_per_s: float
    goodput_per_s: float
    latency_mean_s: float | None = None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    slo: float | None
    accuracy: float | None
    energy_j: float | None
    energy_source: str
    models: tuple[str, ...]
    stages: tuple[str, ...]
    stage_models: tuple[int, ...]
    stage_choices: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    choices: tuple[float, ...]
    mix: tuple[tuple[float, ...], ...]
    bound_accuracy: float | None
    bound_share: float | None
    sure_bound_accuracy: float | None = None
    servers: tuple[ServerFrame, ...]
    decisions: tuple[Decision, ...]
    guard: dict[str, int]
    judged: dict[str, int] = {}
    limits: tuple[Limit, ...] = ()
    happenings: tuple[Happening, ...]


# -- Stages: the segments of all models in one list, and the names of all choices in another.
#
# Tables and pictures of a run count by stage and by name, so that they work the same for one model or
# several.


class Stages:
    """Numbers the segments of all models in one sequence, and the names of their choices in another."""

    def __init__(self, models: Sequence[ModelOutline]) -> None:
        self.first: list[int] = []
        """The number of each model's first stage."""
        self.labels: list[str] = []
        """The label of each stage: its number, after its model's name if there are several models."""
        self.models: list[int] = []
        """The model of each stage."""
        self.names: list[str] = []
        """The names of all choices, narrowest first where models agree on the order."""
        for number, model in enumerate(models):
            self.first.append(len(self.labels))
            prefix = f"{model.name} " if len(models) > 1 else ""
            self.labels += [f"{prefix}{segment + 1}" for segment in range(len(model.segments))]
            self.models += [number] * len(model.segments)
            for names in model.segments:
                self._merge(names)
        place = {name: number for number, name in enumerate(self.names)}
        self.choices = [[place[name] for name in names] for model in models for names in model.segments]
        """The choices of each stage, as indices into `names`, narrowest first."""

    def __len__(self) -> int:
        return len(self.labels)

    def stage(self, model: int, segment: int) -> int:
        """Return the stage number of a model's segment."""
        return self.first[model] + segment

    def last(self, model: int) -> int:
        """Return the number of a model's last stage."""
        return self.first[model + 1] - 1 if model + 1 < len(self.first) else len(self.labels) - 1

    def name(self, model: int, segment: int, choice: int) -> int:
        """Return the index of a choice's name in `names`."""
        return self.choices[self.first[model] + segment][choice]

    def _merge(self, names: Sequence[str]) -> None:
        """Add new names, each before the next wider one that is already known."""
        for position, name in enumerate(names):
            if name not in self.names:
                wider = [self.names.index(other) for other in names[position:] if other in self.names]
                self.names.insert(wider[0] if wider else len(self.names), name)


# -- Recent figures: over the last few seconds of a run, kept as running sums so that reading them is cheap.

LEAST, STEP, STEPS = 1e-5, 0.02, 1024
"""Values are counted in steps of this ratio from the least one on, up to 7,800."""


class RecentSum:
    """A sum over recent entries."""

    __slots__ = ("_entries", "value")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self.value = 0.0

    def add(self, now_s: float, value: float) -> None:
        """Add a value now."""
        self._entries.append((now_s, value))
        self.value += value

    def forget(self, old_s: float) -> None:
        """Remove entries older than `old_s`."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            self.value -= entries.popleft()[1]
        if not entries:
            self.value = 0.0  # so that rounding errors do not add up


class RecentSpread:
    """The distribution of recent values, in steps of two per cent: its size does not grow with them."""

    __slots__ = ("_counts", "_entries")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(STEPS, dtype=np.int64)
        self._entries: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, value: float, count: int) -> None:
        """Add a value several times now."""
        step = min(STEPS - 1, max(0, int(log(max(value, LEAST) / LEAST) / STEP)))
        self._entries.append((now_s, step, count))
        self._counts[step] += count

    def forget(self, old_s: float) -> None:
        """Forget values older than `old_s`."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            _, step, count = entries.popleft()
            self._counts[step] -= count

    def percentiles(self, *shares: float) -> tuple[float | None, ...]:
        """Return these percentiles, each within one per cent, or None while there are no values."""
        below = np.cumsum(self._counts)
        total = int(below[-1])
        if not total:
            return (None,) * len(shares)
        steps = np.searchsorted(below, [share / 100 * (total - 1) for share in shares], side="right")
        return tuple((LEAST * np.exp((steps + 0.5) * STEP)).tolist())


class Recent:
    """Figures over the last `window_s` seconds."""

    def __init__(self, models: Sequence[ServedModel], stages: Stages, window_s: float, servers: int) -> None:
        self._models, self._stages, self._window_s = models, stages, window_s
        self._arrivals, self._drops, self._energy_j = RecentSum(), RecentSum(), RecentSum()
        self._answers, self._on_time, self._worth = RecentSum(), RecentSum(), RecentSum()
        self._latency_s, self._latency_sum_s = RecentSpread(), RecentSum()
        self._ran: deque[tuple[float, int, int, int, int]] = deque()
        self.ran_by: NDArray[np.int64] = np.zeros((servers, len(stages), len(stages.names)), dtype=np.int64)
        """Examples run, by server, stage and name of the choice."""

    def grow(self, models: Sequence[ServedModel], stages: Stages) -> None:
        """Know further models, which stand behind those that were there."""
        self._models, self._stages = models, stages
        before, kept = self.ran_by, self.ran_by.shape
        self.ran_by = np.zeros((kept[0], len(stages), len(stages.names)), dtype=np.int64)
        self.ran_by[:, : kept[1], : kept[2]] = before

    def arrived(self, now_s: float, count: int) -> None:
        """Count requests that arrived."""
        self._arrivals.add(now_s, count)

    def answered(self, now_s: float, requests: tuple[Request, ...]) -> None:
        """Count requests that were answered."""
        for request, count in alike(requests):
            self._answers.add(now_s, count)
            self._on_time.add(now_s, count * (now_s <= request.deadline_s))
            accuracy = self._models[request.model].expected_accuracy(request.path, request.trail)
            self._worth.add(now_s, count * accuracy)
            latency_s = now_s - request.arrival_s
            self._latency_sum_s.add(now_s, count * latency_s)
            self._latency_s.add(now_s, latency_s, count)

    def dropped(self, now_s: float, count: int) -> None:
        """Count requests that were dropped."""
        self._drops.add(now_s, count)

    def ran(self, now_s: float, event: SegmentFinished) -> None:
        """Count a batch that a server has run."""
        self._energy_j.add(now_s, event.energy_j)
        server, key, examples, stages = event.server, event.blocks[0].key, event.examples, self._stages
        for segment, choice in enumerate((event.choice, *event.ahead), start=key.segment):
            stage, name = stages.stage(key.model, segment), stages.name(key.model, segment, choice)
            self._ran.append((now_s, server, stage, name, examples))
            self.ran_by[server, stage, name] += examples

    def span_s(self, now_s: float) -> float:
        """Return how far back the figures reach: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def forget(self, now_s: float) -> None:
        """Forget everything older than the window."""
        old_s = now_s - self._window_s
        for kept in (self._arrivals, self._drops, self._energy_j, self._answers, self._on_time, self._worth):
            kept.forget(old_s)
        self._latency_sum_s.forget(old_s)
        self._latency_s.forget(old_s)
        while self._ran and self._ran[0][0] < old_s:
            _, server, stage, name, size = self._ran.popleft()
            self.ran_by[server, stage, name] -= size

    def arrival_per_s(self, now_s: float) -> float:
        """Requests that arrived, per second."""
        return self._arrivals.value / self.span_s(now_s)

    def goodput_per_s(self, now_s: float) -> float:
        """Answers in time, per second."""
        return self._on_time.value / self.span_s(now_s)

    def latency_mean_s(self) -> float | None:
        """Mean latency."""
        return self._latency_sum_s.value / self._answers.value if self._answers.value else None

    def latency_percentiles_s(self) -> tuple[float | None, ...]:
        """Percentiles 50, 95 and 99 of latency."""
        return self._latency_s.percentiles(50, 95, 99)

    def slo(self) -> float | None:
        """Share of answered or dropped requests that were answered in time."""
        left = self._answers.value + self._drops.value
        return self._on_time.value / left if left else None

    def accuracy(self) -> float | None:
        """Mean accuracy of the answered plans, by the quality table."""
        return self._worth.value / self._answers.value if self._answers.value else None

    def served_share(self) -> float:
        """Share of requests that were answered; requests in a growing queue count as unserved."""
        most = max(self._answers.value + self._drops.value, self._arrivals.value)
        return self._answers.value / most if most else 0.0

    def energy_j(self) -> float | None:
        """Joules above idle, per answer."""
        return self._energy_j.value / self._answers.value if self._answers.value else None


# -- Whereabouts: where each open request is (at the gateway or a server), and its next stage.
#
# A log that is read again is followed request by request; a gateway that runs is asked.

Place = tuple[int, int, int]
"""Where a request is, the stage it waits for, and where its input is."""


Census = Callable[[], Iterable[tuple[int, int, int, int]]]
"""Counts open requests: where they are, their model, the segment they wait for or run, and how many."""


class Headcount:
    """Asks a gateway where its requests are; following each of them would cost more than routing it."""

    def __init__(self, servers: int, stages: Stages, census: Census) -> None:
        self._servers, self._stages, self._census = servers, stages, census

    def counts(self) -> list[list[int]]:
        """Count the requests at each server, and last at the gateway, by stage."""
        counts = [[0] * len(self._stages) for _ in range(self._servers + 1)]
        for place, model, segment, requests in self._census():
            counts[place][self._stages.stage(model, segment)] += requests  # the gateway's number is -1
        return counts

    def grow(self, stages: Stages) -> None:
        """Know the stages of further models."""
        self._stages = stages

    def arrived(self, requests: Sequence[Request]) -> None:
        """The gateway knows."""

    def sent(self, block: Block, server: int, source: int) -> None:
        """The gateway knows."""

    def finished(self, block: Block, server: int, segments: int) -> None:
        """The gateway knows."""

    def input_lost(self, block: Block, server: int) -> None:
        """The gateway knows."""

    def gone(self, requests: Sequence[Request]) -> None:
        """The gateway knows."""

    def server_down(self, server: int) -> None:
        """The gateway knows."""


class Whereabouts:
    """Follows requests through the gateway's events and commands, and counts them by place."""

    def __init__(self, servers: int, stages: Stages) -> None:
        self._stages = stages
        self._places: dict[int, Place] = {}
        self._counts = [
            [0] * len(stages) for _ in range(servers + 1)
        ]  # the last row is the gateway's: its number is -1

    def grow(self, stages: Stages) -> None:
        """Know the stages of further models, which stand behind those that were there."""
        self._stages = stages
        for counts in self._counts:
            counts += [0] * (len(stages) - len(counts))

    def counts(self) -> list[list[int]]:
        """Count the requests at each server, and last at the gateway, by stage."""
        return self._counts

    def arrived(self, requests: Sequence[Request]) -> None:
        """Note that requests wait at the gateway."""
        for request in requests:
            stage = self._stages.first[request.model]
            self._places.update(dict.fromkeys(request.ids, (GATEWAY, stage, GATEWAY)))
            self._counts[GATEWAY][stage] += request.count

    def sent(self, block: Block, server: int, source: int) -> None:
        """Note that a block is on its way to a server, or there."""
        self._move(ids_of(block.requests), (server, self._stage(block), source))

    def finished(self, block: Block, server: int, segments: int) -> None:
        """Note that a block has run some segments and waits for the next; ignore stale reports."""
        stage = self._stage(block)
        numbers = [n for n in ids_of(block.requests) if self._is_at(n, server, stage)]
        self._move(numbers, (GATEWAY, min(stage + segments, self._stages.last(block.key.model)), server))

    def input_lost(self, block: Block, server: int) -> None:
        """Note that a block's requests begin again from their original inputs."""
        stage = self._stage(block)
        numbers = [n for n in ids_of(block.requests) if self._is_at(n, server, stage)]
        self._move(numbers, self._beginning(stage))

    def gone(self, requests: Sequence[Request]) -> None:
        """Note that requests were answered or dropped."""
        self._leave(ids_of(requests))

    def server_down(self, server: int) -> None:
        """Restart the requests that a server had, and those whose activations it held."""
        lost: dict[Place, list[int]] = {}
        for number, (at, stage, holder) in self._places.items():
            if at == server or (at == GATEWAY and holder == server):
                lost.setdefault(self._beginning(stage), []).append(number)
        for beginning, numbers in lost.items():
            self._move(numbers, beginning)

    def _stage(self, block: Block) -> int:
        return self._stages.stage(block.key.model, block.key.segment)

    def _beginning(self, stage: int) -> Place:
        """Return the place where requests at this stage begin again."""
        return (GATEWAY, max(first for first in self._stages.first if first <= stage), GATEWAY)

    def _is_at(self, number: int, server: int, stage: int) -> bool:
        place = self._places.get(number)
        return place is not None and place[0] == server and place[1] == stage

    def _move(self, numbers: Sequence[int], to: Place) -> None:
        known = self._leave(numbers)
        self._places.update(dict.fromkeys(known, to))
        self._counts[to[0]][to[1]] += len(known)

    def _leave(self, numbers: Sequence[int]) -> list[int]:
        """Remove requests from their places and return the open ones. Usually all are in one place."""
        places = [self._places.pop(number, None) for number in numbers]
        if places and places[0] is not None and places.count(places[0]) == len(places):
            self._counts[places[0][0]][places[0][1]] -= len(places)
            return list(numbers)
        for place in places:
            if place is not None:
                self._counts[place[0]][place[1]] -= 1
        return [number for number, place in zip(numbers, places, strict=True) if place is not None]


DECISIONS = 8
HAPPENINGS = 6
SNAPSHOTS = 10
"""Utilization and power are means over this many of a server's last samples, about one second."""

GUARDED = ("guard: ", "shadow: ")
"""How the reasons of `routers/guard.py` begin."""

Bound = Callable[[float], float]
"""The fluid bound's accuracy at an arrival rate."""


class LiveView:
    """Follows the entries of the log; `frame` returns the current state."""

    def __init__(
        self,
        cluster: Cluster,
        router: str,
        *,
        bound: Bound | None = None,
        sure_bound: Bound | None = None,
        window_s: float = 10.0,
    ) -> None:
        self._names, self._router = cluster.names, router
        self.bound, self.sure_bound = bound, sure_bound
        self.current: Callable[[], Cluster] | None = None
        """Gives the cluster as it is, where its models may change."""
        self.energy_source = "; ".join(sorted({profile.energy_source for profile in cluster.profiles}))
        """Where figures of power come from: the profiles, unless someone knows better."""
        self._models, self._stages = cluster.models, Stages(outlines(cluster.models))
        self._recent = Recent(cluster.models, self._stages, window_s, len(cluster))
        self._whereabouts: Whereabouts | Headcount = Whereabouts(len(cluster), self._stages)
        self._up = [True] * len(cluster)
        self._given_up = [False] * len(cluster)
        self._snapshots: list[deque[ServerSnapshot]] = [deque(maxlen=SNAPSHOTS) for _ in cluster.names]
        self._decisions: deque[tuple[float, SendBlock]] = deque(maxlen=DECISIONS)
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS)
        self._guard: Counter[str] = Counter()
        self._judged: Counter[str] = Counter()
        self._distrusted: set[int] = set()
        self._fell: set[int] = set()
        self._arrived = self._answered = self._dropped = 0
        self.limits: Callable[[], Sequence[tuple[str, bool]]] = tuple
        """Gives the limits of the goal and whether each is kept now, where a router runs that knows it."""
        self._limits: tuple[Limit, ...] = ()

    def ask(self, census: Census) -> None:
        """Ask a running gateway where requests are, instead of following them."""
        self._whereabouts = Headcount(len(self._names), self._stages, census)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry of the log."""
        if machine == AUTOSCALER_NAME:
            for step in commands:
                if isinstance(step, Scale):
                    text = f"autoscaler: {step.servers} servers, {step.reason}"
                    self._happenings.append(Happening(at_s=now_s, text=text))
        elif machine == GATEWAY_NAME:
            self._told(now_s, event)
            for command in commands:
                self._asked(now_s, command)

    def frame(self, now_s: float, phase: str = "ready") -> Frame:
        """Return the current frame."""
        self._note_yielding(now_s)
        recent = self._recent
        recent.forget(now_s)
        p50_s, p95_s, p99_s = recent.latency_percentiles_s()
        rate_per_s, accuracy = recent.arrival_per_s(now_s), recent.accuracy()
        bound = (self.bound(rate_per_s) or None) if self.bound is not None and rate_per_s > 0 else None
        sure = (self.sure_bound(rate_per_s) or None) if self.sure_bound is not None and self._judged else None
        ran, span_s = recent.ran_by, recent.span_s(now_s)
        by_stage: list[list[int]] = ran.sum(axis=0).tolist()
        by_server: list[list[int]] = ran.sum(axis=1).tolist()
        there = self._whereabouts.counts()
        return Frame(
            at_s=now_s,
            phase=phase,
            router=self._router,
            arrived=self._arrived,
            answered=self._answered,
            dropped=self._dropped,
            waiting=tuple(there[GATEWAY]),
            finished_per_s=tuple(sum(counts) / span_s for counts in by_stage),
            arrival_per_s=rate_per_s,
            goodput_per_s=recent.goodput_per_s(now_s),
            latency_mean_s=recent.latency_mean_s(),
            latency_p50_s=p50_s,
            latency_p95_s=p95_s,
            latency_p99_s=p99_s,
            slo=recent.slo(),
            accuracy=accuracy,
            energy_j=recent.energy_j(),
            energy_source=self.energy_source,
            models=tuple(model.name for model in self._models),
            stages=tuple(self._stages.labels),
            stage_models=tuple(self._stages.models),
            stage_choices=tuple(map(tuple, self._stages.choices)),
            names=tuple(self._stages.names),
            choices=_shares([sum(counts) for counts in zip(*by_stage, strict=True)]),
            mix=tuple(map(_shares, by_stage)),
            bound_accuracy=bound,
            bound_share=recent.served_share() * accuracy / bound if bound and accuracy is not None else None,
            sure_bound_accuracy=sure if rate_per_s > 0 else None,
            servers=tuple(
                self._server(index, there[index], counts, span_s) for index, counts in enumerate(by_server)
            ),
            decisions=tuple(self._decision(at_s, command) for at_s, command in self._decisions),
            guard=dict(self._guard),
            judged=dict(self._judged),
            limits=self._limits,
            happenings=tuple(self._happenings),
        )

    def _note_yielding(self, now_s: float) -> None:
        """Note which limits of the goal began to yield, or are kept again, since the last frame."""
        before = {limit.text: limit.kept for limit in self._limits}
        self._limits = tuple(Limit(text=text, kept=kept) for text, kept in self.limits())
        for limit in self._limits:
            if limit.kept != before.get(limit.text, True):
                state = "is kept again" if limit.kept else "is not kept now"
                self._happenings.append(Happening(at_s=now_s, text=f"{limit.text} {state}"))

    def _told(self, now_s: float, event: Struct) -> None:
        whereabouts = self._whereabouts
        if isinstance(event, RequestsArrived):
            self._arrived += count_examples(event.requests)
            self._recent.arrived(now_s, count_examples(event.requests))
            whereabouts.arrived(event.requests)
        elif isinstance(event, SegmentFinished):
            for block in event.blocks:
                whereabouts.finished(block, event.server, 1 + len(event.ahead))
            self._recent.ran(now_s, event)
        elif isinstance(event, TelemetryReceived):
            self._snapshots[event.server].append(event.snapshot)
        elif isinstance(event, InputLost):
            whereabouts.input_lost(event.block, event.server)
        elif isinstance(event, ServerDown):
            self._turn(now_s, event.server, up=False)
            self._snapshots[event.server].clear()
            whereabouts.server_down(event.server)
        elif isinstance(event, ServerGivenUp):
            self._given_up[event.server] = True
            self._happenings.append(Happening(at_s=now_s, text=event.reason))
        elif isinstance(event, ServerUp):
            self._given_up[event.server] = False
            self._turn(now_s, event.server, up=True)
        elif isinstance(event, GoalChanged):
            text = f"the goal is now: {format_goals(event.goal)}"
            self._happenings.append(Happening(at_s=now_s, text=text, kind="goal"))
        elif isinstance(event, ModelsChanged) and self.current is not None:
            self._change_models(now_s, self.current(), event)

    def _change_models(self, now_s: float, cluster: Cluster, event: ModelsChanged) -> None:
        """Follow models that came or went; new ones stand last, so that what is known stays in its place."""
        self._models, self._stages = cluster.models, Stages(outlines(cluster.models))
        self._recent.grow(cluster.models, self._stages)
        self._whereabouts.grow(self._stages)
        names = [f"model {cluster.models[entry.number].name} is loaded" for entry in event.added]
        names += [f"model {cluster.models[number].name} takes no more requests" for number in event.retired]
        self._happenings.extend(Happening(at_s=now_s, text=text) for text in names)

    def _asked(self, now_s: float, command: Struct) -> None:
        if isinstance(command, SendBlock):
            self._whereabouts.sent(command.block, command.server, command.source)
            if command.reason.startswith(GUARDED):
                self._guard[command.reason.partition(" would")[0]] += 1
            self._decisions.append((now_s, command))
        elif isinstance(command, Answer):
            self._answered += count_examples(command.requests)
            for request in command.requests:
                if request.trail is not None and request.trail.why:
                    self._judge(now_s, request.model, request.trail.why)
            self._recent.answered(now_s, command.requests)
            self._whereabouts.gone(command.requests)
        elif isinstance(command, Drop):
            self._dropped += count_examples(command.requests)
            self._recent.dropped(now_s, count_examples(command.requests))
            self._whereabouts.gone(command.requests)

    def _decision(self, at_s: float, command: SendBlock) -> Decision:
        """Describe a route; texts are made only for what is shown."""
        key, why, runner_up = command.block.key, command.why, ""
        choices = self._models[key.model].spec.segments[key.segment]
        if why is not None and why.server >= 0:
            runner_up = f"{self._names[why.server]} at {choices[why.choice]}"
        return Decision(
            at_s=at_s,
            server=self._names[command.server],
            stage=self._stages.labels[self._stages.stage(key.model, key.segment)],
            choice=choices[key.choice],
            examples=command.block.examples,
            reason=explain_route(command.reason, why, runner_up),
        )

    def _judge(self, now_s: float, model: int, why: str) -> None:
        """Count why an answer was sent, and note when a model's confidence is no longer trusted, or again."""
        self._judged[why] += 1
        if (why == DISTRUST) == (model in self._distrusted) or why not in (DISTRUST, SURE):
            return
        name = self._models[model].name
        if why == DISTRUST:
            self._distrusted.add(model)
            text = f"model {name} is surer than it should be: its confidence is not relied on"
        else:
            self._distrusted.discard(model)
            text = f"model {name} is as sure as it should be again"
        self._happenings.append(Happening(at_s=now_s, text=text))

    def _turn(self, now_s: float, server: int, *, up: bool) -> None:
        """Note that a server went down or came back; ignore it if nothing changed."""
        if self._up[server] != up:
            self._up[server] = up
            if not up and not self._snapshots[server]:
                return  # it has never reported: a live server that has not started yet
            name = self._names[server]
            state = "down" if not up else "up again" if server in self._fell else "up"
            text = f"{name if name.startswith('server') else f'server {name}'}: {state}"
            self._happenings.append(Happening(at_s=now_s, text=text, kind="up" if up else "down"))
            if not up:
                self._fell.add(server)

    def _server(self, index: int, there: list[int], counts: list[int], span_s: float) -> ServerFrame:
        up = self._up[index]
        said = self._snapshots[index] if up else ()
        last = said[-1] if said else None
        return ServerFrame(
            name=self._names[index],
            up=up,
            given_up=self._given_up[index],
            at=tuple(there),
            queued=sum(last.queued) if last else 0,
            instances=last.instances if last else 0,
            utilization=_mean([one.utilization for one in said]),
            power_w=_mean([one.power_w for one in said]),
            vram_bytes=last.vram_bytes if last else 0,
            choices=_shares(counts),
            examples_per_s=sum(counts) / span_s,
        )


def _shares(counts: Sequence[int]) -> tuple[float, ...]:
    whole = sum(counts)
    return tuple(count / whole for count in counts) if whole else (0.0,) * len(counts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


# -- The recorder: keeps a frame at regular times, so that a run can be viewed afterwards.

FRAMES = 240
"""Number of frames per run: enough for a smooth slider."""


class Recorder:
    """An observer that keeps frames, by the times in the log."""

    def __init__(
        self,
        cluster: Cluster,
        router: str,
        *,
        seconds: float,
        begin_s: float = 0.0,
        bound: Bound | None = None,
        sure_bound: Bound | None = None,
    ) -> None:
        self._period_s = seconds / FRAMES
        self._view = LiveView(
            cluster, router, bound=bound, sure_bound=sure_bound, window_s=max(1.0, 4 * self._period_s)
        )
        self._next_s = begin_s + self._period_s
        self.frames: list[Frame] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry, after keeping the frames that were due before it."""
        while now_s > self._next_s:
            self.frames.append(self._view.frame(self._next_s))
            self._next_s += self._period_s
        self._view.observe(now_s, machine, event, commands)


def frames_of(log: Path, cluster: Cluster, router: str) -> list[Frame]:
    """Fold the log of a gateway into frames; the servers' own entries are not needed."""
    times_s = [entry.now_s for entry in Log(log).entries() if entry.machine in _TYPES]
    if len(times_s) < 2:
        raise DataError(f"{log.name} ends before anything happens, or is not the log of a gateway")
    recorder = Recorder(cluster, router, seconds=max(times_s[-1] - times_s[0], 1e-3), begin_s=times_s[0])
    decoders = {
        name: (msgspec.json.Decoder(event), msgspec.json.Decoder(list[command]))  # type: ignore[valid-type]
        for name, (event, command) in _TYPES.items()
    }
    try:
        for entry in Log(log).entries():
            if entry.machine in decoders:
                events, commands = decoders[entry.machine]
                recorder.observe(
                    entry.now_s, entry.machine, events.decode(entry.event), commands.decode(entry.commands)
                )
    except (msgspec.DecodeError, LookupError) as error:
        raise DataError(f"{log.name} does not fit its own scenario ({error}); write it again") from None
    return recorder.frames


_TYPES: dict[str, tuple[Any, Any]] = {
    GATEWAY_NAME: (Event, Command),
    AUTOSCALER_NAME: (LoadReported, Scale),
}
"""The machines that a view follows, with their events and commands."""
