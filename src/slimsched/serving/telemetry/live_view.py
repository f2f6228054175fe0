"""The live view: follows the event log and can give a frame at any moment.

A frame is everything that a dashboard shows at one moment. The view keeps recent figures as running sums, and
for each open request where it is; a recorder keeps frames at regular times for a report.
"""

from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.core.log import Log
from slimsched.core.statistics import Spread
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY, GATEWAY_NAME, Cluster, ServerSnapshot
from slimsched.serving.domain.model import ModelOutline, ModelsChanged, ServedModel, outlines
from slimsched.serving.domain.request import OUTCOMES, Outcome, Request, alike, count_examples
from slimsched.serving.gateway.bounds import BoundCurve
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import Goal, format_goals
from slimsched.serving.gateway.messages import (
    Answer,
    Command,
    Drop,
    Event,
    GoalChanged,
    RequestsArrived,
    RequestsRefused,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.gateway.stop_when_sure import DISTRUST, SURE
from slimsched.serving.routers.autoscaler import LoadReported, Scale
from slimsched.serving.routers.guard import goal_of
from slimsched.serving.telemetry.stories import explain_route
from slimsched.serving.telemetry.verdict import BLOCKS, LimitVerdict, Word, judge

# -- A frame: everything a dashboard shows at one moment, as one small JSON object.


class ServerFrame(Struct, frozen=True, kw_only=True):
    """One server: the gateway's requests that it has, and its own last report; while it is down all 0."""

    name: str
    up: bool
    given_up: bool  # it cannot be started
    since_s: float | None = None  # since when it is up or down
    at: tuple[int, ...]  # requests, by stage
    queued: int
    instances: int
    utilization: float
    power_w: float
    vram_bytes: int
    no_memory: int = 0  # how often an instance was not loaded because its memory is full
    choices: tuple[float, ...]  # shares of recent examples, by the choice that they ran at
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
    kind: Literal["down", "up", "goal", "verdict", "note"] = "note"


class RecentFigures(Struct, frozen=True, kw_only=True):
    """Figures over the last seconds; None while there is nothing to compute them from."""

    arrival_per_s: float  # offered: those refused at the door are among them
    goodput_per_s: float  # answered in time
    ended_per_s: dict[Outcome, float]
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    slo: float | None  # in time, as a share of all that were answered, refused or dropped
    accuracy: float | None  # mean over the answered plans, by the quality table
    energy_j: float | None  # above idle, per answer


class Frame(RecentFigures, frozen=True, kw_only=True):
    """Totals since the start, figures over the last seconds, the servers, and the last decisions.

    A stage is one segment of one model.
    """

    at_s: float
    phase: str
    router: str
    arrived: int  # offered
    answered: int
    dropped: int  # or refused at the door
    outcomes: dict[Outcome, int]  # with those under way, all that were offered
    began_unix_s: float | None = None  # by the wall clock, when at_s was 0
    waiting: tuple[int, ...]  # requests in the central queue, by their next stage
    finished_per_s: tuple[float, ...]  # examples that passed each stage
    energy_source: str
    models: tuple[str, ...]
    stages: tuple[str, ...]  # the label of each stage
    stage_models: tuple[int, ...]  # the number of each stage's model
    stage_choices: tuple[tuple[int, ...], ...]  # the choices of each stage, as indices into `names`
    names: tuple[str, ...]  # the names of all choices, narrow to wide
    choices: tuple[float, ...]  # the share of each choice
    mix: tuple[tuple[float, ...], ...]  # the share of each choice, by stage
    bound_accuracy: float | None  # the fluid bound of routers that do not look at examples
    bound_share: float | None
    sure_bound_accuracy: float | None = None  # the bound of routers that stop when sure
    servers: tuple[ServerFrame, ...]
    decisions: tuple[Decision, ...]
    guard: dict[str, int]  # blocks that the guard of a router decided about, by reason
    judged: dict[str, int] = {}  # answers by why they were sent, where the router judges them
    limits: tuple[
        LimitVerdict, ...
    ] = ()  # of the goal over the last minute, in the order in which they yield
    run_limits: tuple[LimitVerdict, ...] = ()  # since the goal was set
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


ARRIVED, LATE, REFUSED, FAILED, ENERGY_J, ANSWERED = range(6)
"""The numbers of the sums; behind ANSWERED: answers in time, expected correct ones, seconds."""

DROPPED = {"late": LATE, "refused": REFUSED, "failed": FAILED}


class Recent:
    """Counts what happened in the last `window_s` seconds."""

    def __init__(self, models: Sequence[ServedModel], stages: Stages, window_s: float, servers: int) -> None:
        self._models, self._stages, self._window_s = models, stages, window_s
        self._entries: deque[tuple[float, int, tuple[float, ...], int]] = deque()
        self._totals = [0.0] * 9
        self._latency_s = Spread()
        self._ran: deque[tuple[float, int, int, int, int]] = deque()
        self.ran_by: NDArray[np.int64] = np.zeros((servers, len(stages), len(stages.names)), dtype=np.int64)
        """Examples run, by server, stage and name of the choice."""
        self.served_share = 0.0
        """The share of requests answered, as of the last figures; a growing queue counts as unserved."""

    def grow(self, models: Sequence[ServedModel], stages: Stages) -> None:
        """Know further models, which stand behind those that were there."""
        self._models, self._stages = models, stages
        before, kept = self.ran_by, self.ran_by.shape
        self.ran_by = np.zeros((kept[0], len(stages), len(stages.names)), dtype=np.int64)
        self.ran_by[:, : kept[1], : kept[2]] = before

    def arrived(self, now_s: float, count: int) -> None:
        """Count requests that arrived."""
        self._add(now_s, ARRIVED, count)

    def answered(self, now_s: float, request: Request, count: int, accuracy: float) -> None:
        """Count answers that are alike, by the first of their requests."""
        latency_s = now_s - request.arrival_s
        in_time = count * (now_s <= request.deadline_s)
        if not in_time:
            self._add(now_s, LATE, count)
        step = self._latency_s.add(latency_s, count)
        self._add(now_s, ANSWERED, count, in_time, count * accuracy, count * latency_s, step=step)

    def dropped(self, now_s: float, count: int, outcome: Outcome) -> None:
        """Count requests that were dropped, or refused at the door."""
        self._add(now_s, DROPPED[outcome], count)

    def ran(self, now_s: float, event: SegmentFinished) -> None:
        """Count a batch that a server has run."""
        self._add(now_s, ENERGY_J, event.energy_j)
        server, key, examples, stages = event.server, event.blocks[0].key, event.examples, self._stages
        for segment, choice in enumerate((event.choice, *event.ahead), start=key.segment):
            stage, name = stages.stage(key.model, segment), stages.name(key.model, segment, choice)
            self._ran.append((now_s, server, stage, name, examples))
            self.ran_by[server, stage, name] += examples

    def _add(self, now_s: float, first: int, *values: float, step: int = -1) -> None:
        """Add values to the sums from number `first` on, now; `step` is where a latency is counted."""
        self._entries.append((now_s, first, values, step))
        for number, value in enumerate(values, start=first):
            self._totals[number] += value

    def _forget(self, old_s: float) -> None:
        """Take out what is older than a time."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            _, first, values, step = entries.popleft()
            for number, value in enumerate(values, start=first):
                self._totals[number] -= value
            if step >= 0:
                self._latency_s.counts[step] -= int(values[0])
        if not entries:
            self._totals = [0.0] * len(self._totals)  # so that rounding errors do not add up
        while self._ran and self._ran[0][0] < old_s:
            _, server, stage, name, size = self._ran.popleft()
            self.ran_by[server, stage, name] -= size

    def span_s(self, now_s: float) -> float:
        """Return how far back the figures reach: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def figures(self, now_s: float) -> RecentFigures:
        """Forget everything older than the window, and return the figures over it."""
        self._forget(now_s - self._window_s)
        arrived, late, refused, failed, energy_j, answered, in_time, correct, latency_s = self._totals
        ends, span_s = (in_time, late, refused, failed), self.span_s(now_s)
        p50_s, p95_s, p99_s = self._latency_s.quantiles(0.5, 0.95, 0.99) or (None, None, None)
        self.served_share = answered / max(answered + refused + failed, arrived) if answered else 0.0
        return RecentFigures(
            arrival_per_s=arrived / span_s,
            goodput_per_s=in_time / span_s,
            ended_per_s={one: n / span_s for one, n in zip(OUTCOMES, ends, strict=True)},
            latency_mean_s=latency_s / answered if answered else None,
            latency_p50_s=p50_s,
            latency_p95_s=p95_s,
            latency_p99_s=p99_s,
            slo=in_time / sum(ends) if sum(ends) else None,
            accuracy=correct / answered if answered else None,
            energy_j=energy_j / answered if answered else None,
        )


# -- The goal: what counts for its limits, in blocks of time.

WINDOW_S, WINDOW_BLOCK_S = 60.0, 0.5
"""The window of verdicts on how things are now, and its blocks."""

FIRST_BLOCK_S = 0.125
"""The blocks of a run at its begin; they are joined in pairs when there are too many."""


class _Blocks:
    """Totals and weights of each limit in equal blocks of time, oldest first: the newest, or all."""

    def __init__(self, limits: int, count: int, block_s: float, begin_s: float, *, doubles: bool) -> None:
        self.sums = np.zeros((count, limits, 2))
        self.begin_s, self.block_s, self.doublings = begin_s, block_s, 0
        self._doubles = doubles

    def at(self, now_s: float) -> int:
        """Return the block of a time; make room for it."""
        count = len(self.sums)
        while (at := int((now_s - self.begin_s) / self.block_s)) >= count:
            if self._doubles:
                joined = self.sums.reshape(count // 2, 2, -1, 2).sum(axis=1)
                self.sums = np.concatenate([joined, np.zeros_like(joined)])
                self.block_s, self.doublings = 2.0 * self.block_s, self.doublings + 1
            else:
                gone = at - count + 1
                self.sums = np.concatenate([self.sums[gone:], np.zeros_like(self.sums[:gone])])
                self.begin_s += gone * self.block_s
        return max(0, at)


class Watch:
    """Sums what counts for each limit of a goal, over the last minute and since the goal was set."""

    def __init__(self, goal: Goal | None, cluster: Cluster, now_s: float) -> None:
        self._limits = [] if goal is None else goal.stated([model.name for model in cluster.active])
        self._idle_w, count = sum(one.idle_w for one in cluster.profiles), len(self._limits)
        self._blocks = (
            _Blocks(count, round(WINDOW_S / WINDOW_BLOCK_S), WINDOW_BLOCK_S, now_s, doubles=False),
            _Blocks(count, BLOCKS, FIRST_BLOCK_S, now_s, doubles=True),
        )
        self._sums = [[0.0, 0.0] for _ in self._limits]
        self._from_s, self._next_s = now_s, now_s + FIRST_BLOCK_S
        rows = list(enumerate(self._limits))
        self._energy = [row for row, limit in rows if limit.figure in ("energy", "power")]
        self._answers = [row for row, limit in rows if limit.figure == "energy"]
        self._own = {
            model.number: [one for one in rows if one[1].model == model.name and one[0] not in self._energy]
            for model in cluster.active
        }

    def answered(self, now_s: float, model: int, count: int, latency_s: float, accuracy: float) -> None:
        """Count answers that are alike."""
        if self._limits and now_s >= self._next_s:
            self._settle(now_s)
        for row, limit in self._own.get(model, ()):
            figures = {"accuracy": accuracy, "mean": latency_s}
            self._sums[row][0] += count * figures.get(limit.figure, float(latency_s <= limit.value))
            self._sums[row][1] += count
        for row in self._answers:
            self._sums[row][1] += count

    def drew(self, now_s: float, energy_j: float) -> None:
        """Count the energy of a batch, above idle."""
        if self._energy and now_s >= self._next_s:
            self._settle(now_s)
        for row in self._energy:
            self._sums[row][0] += energy_j

    def verdicts(self, now_s: float) -> tuple[tuple[LimitVerdict, ...], tuple[LimitVerdict, ...]]:
        """Judge each limit over the last minute, and since the goal was set."""
        if self._limits:
            self._settle(now_s)
        each, (recent, whole) = list(enumerate(self._limits)), self._blocks
        return (
            tuple(judge(limit, recent.sums[:, row]) for row, limit in each),
            tuple(judge(limit, whole.sums[:, row], whole.doublings) for row, limit in each),
        )

    def _settle(self, now_s: float) -> None:
        """Put the sums of the last moments into their blocks; power counts for each second that passed."""
        for row in self._energy:
            if row not in self._answers:
                self._sums[row][0] += self._idle_w * (now_s - self._from_s)
                self._sums[row][1] += now_s - self._from_s
        for blocks in self._blocks:
            blocks.at(now_s)  # which may join blocks, or let old ones go
            blocks.sums[blocks.at(self._from_s)] += self._sums
        self._sums = [[0.0, 0.0] for _ in self._limits]
        self._from_s, self._next_s = now_s, now_s + FIRST_BLOCK_S


DECISIONS = 8
HAPPENINGS = 12
"""Kept of each kind, so that none pushes out the others."""
SNAPSHOTS = 10
"""Utilization and power are means over this many of a server's last samples, about one second."""

GUARDED = ("guard: ", "shadow: ")
"""How the reasons of `routers/guard.py` begin."""


class LiveView:
    """Follows the entries of a gateway's log; `frame` returns the current state.

    The gateway itself is asked for what its log does not say: where the open requests are (following each of
    them would cost more than routing it), its models, and which goal it follows.
    """

    def __init__(
        self,
        gateway: Gateway,
        router: str,
        *,
        bounds: BoundCurve | None = None,
        window_s: float = 10.0,
    ) -> None:
        cluster = gateway.cluster
        self._gateway, self._names, self._router = gateway, cluster.names, router
        self.bounds = bounds
        self.energy_source = "; ".join(sorted({profile.energy_source for profile in cluster.profiles}))
        """Where figures of power come from: the profiles, unless someone knows better."""
        self._models, self._stages = cluster.models, Stages(outlines(cluster.models))
        self._recent = Recent(cluster.models, self._stages, window_s, len(cluster))
        self._up = [True] * len(cluster)
        self._given_up = [False] * len(cluster)
        self._snapshots: list[deque[ServerSnapshot]] = [deque(maxlen=SNAPSHOTS) for _ in cluster.names]
        self._decisions: deque[tuple[float, SendBlock]] = deque(maxlen=DECISIONS)
        self._happenings: dict[str, deque[Happening]] = {}
        self._since_s: list[float | None] = [None] * len(cluster)
        self.began_unix_s: float | None = None
        """The wall clock's time when the cluster's was 0, if somebody knows."""
        self._guard: Counter[str] = Counter()  # blocks, by why the guard decided about them
        self._judged: Counter[str] = Counter()  # answers, by why they were sent
        self._distrusted: set[int] = set()  # models whose confidence is not relied on
        self._fell: set[int] = set()  # servers that have been down
        self._arrived = self._answered = self._dropped = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._follow_goal(0.0)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry of the log."""
        if machine == AUTOSCALER_NAME:
            for step in commands:
                if isinstance(step, Scale):
                    text = f"autoscaler: {step.servers} servers, {step.reason}"
                    self._note(now_s, text)
        elif machine == GATEWAY_NAME:
            self._note_event(now_s, event)
            for command in commands:
                self._note_command(now_s, command)

    def frame(self, now_s: float, phase: str = "ready") -> Frame:
        """Return the current frame."""
        limits, run_limits = self._watch.verdicts(now_s)
        self._note_verdicts(now_s, limits)
        recent = self._recent.figures(now_s)
        is_rated = all(model.quality.is_measured for model in self._models)  # else accuracies are assumed
        recent = recent if is_rated else replace(recent, accuracy=None)
        rate_per_s, accuracy = recent.arrival_per_s, recent.accuracy
        bounds = self.bounds if rate_per_s > 0 and is_rated else None
        bound = None if bounds is None else bounds.accuracy(rate_per_s) or None
        sure = None if bounds is None or not self._judged else bounds.sure_accuracy(rate_per_s) or None
        ran, span_s = self._recent.ran_by, self._recent.span_s(now_s)
        by_stage: list[list[int]] = ran.sum(axis=0).tolist()
        by_server: list[list[int]] = ran.sum(axis=1).tolist()
        there = self._counts()
        return Frame(
            **msgspec.structs.asdict(recent),
            at_s=now_s,
            phase=phase,
            router=self._router,
            arrived=self._arrived,
            answered=self._answered,
            dropped=self._dropped,
            outcomes={outcome: self._outcomes[outcome] for outcome in OUTCOMES},
            began_unix_s=self.began_unix_s,
            waiting=tuple(there[GATEWAY]),
            finished_per_s=tuple(sum(counts) / span_s for counts in by_stage),
            energy_source=self.energy_source,
            models=tuple(model.name for model in self._models),
            stages=tuple(self._stages.labels),
            stage_models=tuple(self._stages.models),
            stage_choices=tuple(map(tuple, self._stages.choices)),
            names=tuple(self._stages.names),
            choices=_shares([sum(counts) for counts in zip(*by_stage, strict=True)]),
            mix=tuple(map(_shares, by_stage)),
            bound_accuracy=bound,
            bound_share=self._recent.served_share * accuracy / bound
            if bound and accuracy is not None
            else None,
            sure_bound_accuracy=sure,
            servers=tuple(
                self._server(index, there[index], counts, span_s) for index, counts in enumerate(by_server)
            ),
            decisions=tuple(self._decision(at_s, command) for at_s, command in self._decisions),
            guard=dict(self._guard),
            judged=dict(self._judged),
            limits=limits,
            run_limits=run_limits,
            happenings=tuple(
                sorted((one for kept in self._happenings.values() for one in kept), key=lambda one: one.at_s)
            ),
        )

    def _counts(self) -> list[list[int]]:
        """Count the requests at each server, and last at the gateway, by stage."""
        counts = [[0] * len(self._stages) for _ in range(len(self._names) + 1)]
        for place, model, segment, requests in self._gateway.census():
            counts[place][self._stages.stage(model, segment)] += requests  # the gateway's number is -1
        return counts

    def _note(self, now_s: float, text: str, kind: Any = "note") -> None:
        """Keep something worth showing."""
        kept = self._happenings.setdefault(kind, deque(maxlen=HAPPENINGS))
        kept.append(Happening(at_s=now_s, text=text, kind=kind))

    def _note_verdicts(self, now_s: float, limits: Sequence[LimitVerdict]) -> None:
        """Note which limits of the goal are broken, or kept again; what is undecided changes nothing."""
        for one in limits:
            before = self._decided.get(one.limit, "kept")
            if one.word == "undecided":
                continue
            self._decided[one.limit] = one.word
            if one.word != before:
                again = " again" if one.word == "kept" else ""
                self._note(now_s, f"{one.limit} is {one.word}{again}: {one.says}", "verdict")

    def _follow_goal(self, now_s: float) -> None:
        """Judge by the goal as it is now, from now on."""
        self._watch = Watch(goal_of(self._gateway.router), self._gateway.cluster, now_s)
        self._decided: dict[str, Word] = {}  # what was last said of each limit

    def _note_event(self, now_s: float, event: Struct) -> None:
        if isinstance(event, RequestsArrived):
            self._arrived += count_examples(event.requests)
            self._recent.arrived(now_s, count_examples(event.requests))
        elif isinstance(event, RequestsRefused):
            self._arrived += sum(event.counts)
            self._recent.arrived(now_s, sum(event.counts))
            self._drop(now_s, sum(event.counts), "refused")
        elif isinstance(event, SegmentFinished):
            self._recent.ran(now_s, event)
            self._watch.drew(now_s, event.energy_j)
        elif isinstance(event, TelemetryReceived):
            self._snapshots[event.server].append(event.snapshot)
        elif isinstance(event, ServerDown):
            self._turn(now_s, event.server, up=False)
            self._snapshots[event.server].clear()
        elif isinstance(event, ServerGivenUp):
            self._given_up[event.server] = True
            self._note(now_s, event.reason)
        elif isinstance(event, ServerUp):
            self._given_up[event.server] = False
            self._turn(now_s, event.server, up=True)
        elif isinstance(event, GoalChanged):
            self._note(now_s, f"the goal is now: {format_goals(event.goal)}", "goal")
            self._follow_goal(now_s)
        elif isinstance(event, ModelsChanged):
            self._change_models(now_s, self._gateway.cluster, event)

    def _change_models(self, now_s: float, cluster: Cluster, event: ModelsChanged) -> None:
        """Follow models that came or went; new ones stand last, so that what is known stays in its place."""
        self._models, self._stages = cluster.models, Stages(outlines(cluster.models))
        self._recent.grow(cluster.models, self._stages)
        names = [f"model {cluster.models[entry.number].name} is loaded" for entry in event.added]
        names += [f"model {cluster.models[one.number].name} is rated by {one.name}" for one in event.rated]
        names += [f"model {cluster.models[number].name} takes no more requests" for number in event.retired]
        for text in names:
            self._note(now_s, text)
        self._follow_goal(now_s)

    def _note_command(self, now_s: float, command: Struct) -> None:
        if isinstance(command, SendBlock):
            if command.reason.startswith(GUARDED):
                self._guard[command.reason.partition(" would")[0]] += 1
            self._decisions.append((now_s, command))
        elif isinstance(command, Answer):
            self._answered += count_examples(command.requests)
            for request in command.requests:
                if request.trail is not None and request.trail.why:
                    self._judge(now_s, request.model, request.trail.why)
            for request, count in alike(command.requests):
                accuracy = self._models[request.model].expected_accuracy(request.path, request.trail)
                self._recent.answered(now_s, request, count, accuracy)
                self._watch.answered(now_s, request.model, count, now_s - request.arrival_s, accuracy)
                self._outcomes["in_time" if now_s <= request.deadline_s else "late"] += count
        elif isinstance(command, Drop):
            self._drop(now_s, count_examples(command.requests), command.reason.outcome)

    def _drop(self, now_s: float, count: int, outcome: Outcome) -> None:
        """Count requests that are not answered."""
        self._dropped += count
        self._outcomes[outcome] += count
        self._recent.dropped(now_s, count, outcome)

    def _decision(self, at_s: float, command: SendBlock) -> Decision:
        """Describe a route; texts are made only for what is shown."""
        key = command.block.key
        model = self._models[key.model].spec
        return Decision(
            at_s=at_s,
            server=self._names[command.server],
            stage=self._stages.labels[self._stages.stage(key.model, key.segment)],
            choice=model.segments[key.segment][key.choice],
            examples=command.block.examples,
            reason=explain_route(command, self._names, model),
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
        self._note(now_s, text)

    def _turn(self, now_s: float, server: int, *, up: bool) -> None:
        """Note that a server went down or came back; ignore it if nothing changed."""
        if self._up[server] != up:
            self._up[server], self._since_s[server] = up, now_s
            if not up and not self._snapshots[server]:
                return  # it has never reported: a live server that has not started yet
            name = self._names[server]
            state = "down" if not up else "up again" if server in self._fell else "up"
            text = f"{name if name.startswith('server') else f'server {name}'}: {state}"
            self._note(now_s, text, "up" if up else "down")
            if not up:
                self._fell.add(server)

    def _server(self, index: int, there: list[int], counts: list[int], span_s: float) -> ServerFrame:
        up = self._up[index]
        reports = self._snapshots[index] if up else ()
        last = reports[-1] if reports else None
        return ServerFrame(
            name=self._names[index],
            up=up,
            given_up=self._given_up[index],
            since_s=self._since_s[index],
            at=tuple(there),
            queued=sum(last.queued) if last else 0,
            instances=last.instances if last else 0,
            utilization=fmean(one.utilization for one in reports) if reports else 0.0,
            power_w=fmean(one.power_w for one in reports) if reports else 0.0,
            vram_bytes=last.vram_bytes if last else 0,
            no_memory=last.refused.get("memory", 0) if last else 0,
            choices=_shares(counts if up else [0] * len(counts)),
            examples_per_s=sum(counts) / span_s if up else 0.0,
        )


def _shares(counts: Sequence[int]) -> tuple[float, ...]:
    whole = sum(counts)
    return tuple(count / whole for count in counts) if whole else (0.0,) * len(counts)


# -- The recorder: keeps a frame at regular times, so that a run can be viewed afterwards.

FRAMES = 240
"""Number of frames per run: enough for a smooth slider."""


class Recorder:
    """An observer that keeps frames of a gateway, at the first entries of its log from regular times on."""

    def __init__(
        self,
        gateway: Gateway,
        router: str,
        seconds: float,
        bounds: BoundCurve | None = None,
        *,
        begin_s: float = 0.0,
    ) -> None:
        self._period_s = seconds / FRAMES
        self._view = LiveView(gateway, router, bounds=bounds, window_s=max(1.0, 4 * self._period_s))
        self._next_s = begin_s + self._period_s
        self.frames: list[Frame] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry, which the gateway has just handled, and keep a frame if one is due."""
        self._view.observe(now_s, machine, event, commands)
        if now_s >= self._next_s:
            self.frames.append(self._view.frame(now_s))
            self._next_s += self._period_s * (1 + (now_s - self._next_s) // self._period_s)


def frames_of(log: Path, gateway: Gateway, router: str) -> list[Frame]:
    """Fold the log of a gateway into frames; a fresh gateway of the same run handles its events once more."""
    times_s = [entry.now_s for entry in Log(log).entries() if entry.machine in _TYPES]
    if len(times_s) < 2:
        raise DataError(f"{log.name} ends before anything happens, or is not the log of a gateway")
    recorder = Recorder(gateway, router, max(times_s[-1] - times_s[0], 1e-3), begin_s=times_s[0])
    decoders = {
        name: (msgspec.json.Decoder(event), msgspec.json.Decoder(list[command]))  # type: ignore[valid-type]
        for name, (event, command) in _TYPES.items()
    }
    try:
        for entry in Log(log).entries():
            if entry.machine in decoders:
                events, commands = decoders[entry.machine]
                event = events.decode(entry.event)
                if entry.machine == GATEWAY_NAME:
                    gateway.handle(event, now_s=entry.now_s)
                recorder.observe(entry.now_s, entry.machine, event, commands.decode(entry.commands))
    except (msgspec.DecodeError, LookupError) as error:
        raise DataError(f"{log.name} does not fit its own scenario ({error}); write it again") from None
    return recorder.frames


_TYPES: dict[str, tuple[Any, Any]] = {
    GATEWAY_NAME: (Event, Command),
    AUTOSCALER_NAME: (LoadReported, Scale),
}
"""The machines that a view follows, with their events and commands."""
