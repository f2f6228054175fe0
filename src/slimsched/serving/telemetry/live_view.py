"""The live view: follows the event log and can give a frame at any moment."""

from collections import Counter, deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY, GATEWAY_NAME, Cluster, ServerSnapshot
from slimsched.serving.domain.model import ModelsChanged, outlines
from slimsched.serving.domain.request import count_examples
from slimsched.serving.routing.autoscaler import Scale
from slimsched.serving.routing.commands import Answer, Drop, SendBlock
from slimsched.serving.routing.events import (
    GoalChanged,
    InputLost,
    RequestsArrived,
    SegmentFinished,
    ServerDown,
    ServerGivenUp,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.routing.goal import format_goals
from slimsched.serving.routing.judgement import DISTRUST, SURE
from slimsched.serving.telemetry.explanation import explain_route
from slimsched.serving.telemetry.frame import Decision, Frame, Happening, Limit, ServerFrame
from slimsched.serving.telemetry.recent import Recent
from slimsched.serving.telemetry.stage import Stages
from slimsched.serving.telemetry.whereabouts import Census, Headcount, Whereabouts

DECISIONS = 8
HAPPENINGS = 6
SNAPSHOTS = 10
"""Utilization and power are means over this many of a server's last samples, about one second."""

GUARDED = ("guard: ", "shadow: ")
"""How the reasons of `routing/guard.py` begin."""

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
