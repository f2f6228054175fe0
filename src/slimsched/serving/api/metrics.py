"""What operators see of a running server: metrics for Prometheus, structured logs, and OpenTelemetry traces.

`Metrics` counts the entries of the event log as they happen, and writes its page when somebody asks.
"""

import logging
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from math import nan
from time import time_ns
from typing import Any

import numpy as np
from msgspec import Struct

from slimsched import __version__
from slimsched.core.config import SlimError
from slimsched.serving.api.http_requests import HttpResponse
from slimsched.serving.api.service import CONTENT_TYPE, SECONDS, Histogram, Labels, Tally, family, histogram
from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster, ServerSnapshot
from slimsched.serving.domain.request import DropReason, Request, alike, count_examples, each_example, ids_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import format_goal, format_goals
from slimsched.serving.gateway.messages import (
    Answer,
    Drop,
    GoalChanged,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerUp,
    TelemetryReceived,
)
from slimsched.serving.live.engine import RunLog
from slimsched.serving.live.wire import NextRound
from slimsched.serving.routers.goal import GoalRouter
from slimsched.serving.routers.guard import GuardedRouter, goal_of
from slimsched.serving.routers.registry import split_goal
from slimsched.serving.telemetry.live_view import Frame
from slimsched.serving.telemetry.verdict import Word

# -- What happens to the cluster, as lines of the log.


class ClusterLog:
    """Logs one line when a server comes up, when it goes down, and when the goal changes."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._log = names, logging.getLogger("slim.cluster")
        self._up: set[int] = set()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Look at one entry of the event log."""
        if isinstance(event, ServerUp):
            self._up.add(event.server)
            self._tell(logging.INFO, event.server, "up")
        elif isinstance(event, ServerDown) and event.server in self._up:
            self._up.discard(event.server)
            self._tell(logging.WARNING, event.server, "down; its work starts again elsewhere")
        elif isinstance(event, GoalChanged):
            goal = format_goals(event.goal)
            self._log.info("the goal is now: %s", goal, extra={"goal": goal})

    def _tell(self, level: int, server: int, what: str) -> None:
        name = self._names[server]
        self._log.log(level, "server %s is %s", name, what, extra={"server": name})


# -- OpenTelemetry traces from the event log: one span per example, and below it one span per segment.


class _Open(Struct):
    """A request under way: its span, the context of its segments, and when and why it was last sent."""

    span: Any
    context: Any
    sent_ns: int = 0
    reason: str = ""


class SegmentSpans:
    """Turns the gateway's log entries into spans; the tracer decides which examples to sample."""

    def __init__(self, tracer: Any, cluster: Callable[[], Cluster]) -> None:
        self._tracer, self._names, self._cluster = tracer, cluster().names, cluster
        self._open: dict[int, _Open] = {}
        self._zero_ns: int | None = None

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Look at one entry of the event log."""
        if machine != GATEWAY_NAME:
            return
        if self._zero_ns is None:
            self._zero_ns = time_ns() - int(1e9 * now_s)
        now_ns = self._zero_ns + int(1e9 * now_s)
        if isinstance(event, RequestsArrived):
            for number in ids_of(event.requests):
                self._begin(number, now_ns)
        elif isinstance(event, SegmentFinished):
            for block in event.blocks:
                for request in each_example(block.requests):
                    self._segments(request, event, now_ns)
        for command in commands:
            if isinstance(command, SendBlock):
                for number in ids_of(command.block.requests):
                    if (under_way := self._open.get(number)) is not None:
                        under_way.sent_ns, under_way.reason = now_ns, command.reason
            elif isinstance(command, Answer):
                for request in each_example(command.requests):
                    self._end(request, now_ns, "answered")
            elif isinstance(command, Drop):
                for request in each_example(command.requests):
                    self._end(request, now_ns, command.reason)

    def _begin(self, number: int, now_ns: int) -> None:
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span("request", start_time=now_ns)
        if span.is_recording():
            self._open[number] = _Open(span, set_span_in_context(span))

    def _segments(self, request: Request, event: SegmentFinished, now_ns: int) -> None:
        """Write a span per segment, from leaving the gateway to coming back: transfer, waiting and running.

        If several segments ran in a row, the span of the first one includes the transfer and the waiting. If
        nobody knows how long each of them took, they have one span together.
        """
        under_way = self._open.get(request.id)
        if under_way is None or not under_way.sent_ns:
            return
        segments = self._cluster().models[request.model].spec.segments
        first, choices = request.segment, (event.choice, *event.ahead)
        names = [segments[first + at][choice] for at, choice in enumerate(choices)]
        rows = [(f"segment {first + at}", first + at, name) for at, name in enumerate(names)]
        if len(choices) > 1 and not event.legs_s:
            rows = [(f"segments {first} to {first + len(choices) - 1}", first, ",".join(names))]
        start_ns = under_way.sent_ns
        for at, (name, segment, choice) in enumerate(rows):
            end_ns = now_ns - int(1e9 * sum(event.legs_s[at + 1 :]))
            given = {
                "slim.segment": segment,
                "slim.choice": choice,
                "slim.server": self._names[event.server],
                "slim.reason": under_way.reason,
            }
            span = self._tracer.start_span(name, under_way.context, start_time=start_ns, attributes=given)
            span.end(end_ns)
            start_ns = end_ns

    def _end(self, request: Request, now_ns: int, outcome: str) -> None:
        under_way = self._open.pop(request.id, None)
        if under_way is not None:
            under_way.span.set_attribute("slim.outcome", outcome)
            under_way.span.set_attribute(
                "slim.plan", self._cluster().models[request.model].spec.text(request.path)
            )
            under_way.span.end(now_ns)


def otlp_traces(cluster: Callable[[], Cluster]) -> SegmentSpans:
    """Return spans that are sent by OTLP over HTTP; those that remain at the exit are sent then.

    The usual environment variables say where to send them and how many to sample, for example
    OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SlimError(
            "traces need OpenTelemetry; install it with: pip install 'slim-scheduler[otel]'"
        ) from None
    resource = Resource.create({"service.name": "slim-scheduler", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return SegmentSpans(provider.get_tracer("slimsched", __version__), cluster)


WORDS: dict[Word, float] = {"kept": 1.0, "undecided": 0.0, "broken": -1.0}
"""A verdict as a number."""

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_REASONS = 32
"""Further reasons count as 'other', to keep the number of labels small."""


class Metrics:
    """Observes a live cluster and writes the metrics page."""

    def __init__(
        self,
        gateway: Gateway,
        tally: Tally,
        router: str,
        *,
        frame: Callable[[], Frame],
        waiting: Callable[[], Collection[int]] = tuple,
        log: RunLog | None = None,
    ) -> None:
        """`frame` returns the dashboard's newest figures; `waiting` says which servers get no core.

        `log` is the event log that the server writes, if any.
        """
        self._gateway, self._tally, self._frame = gateway, tally, frame
        self._waiting, self._log = waiting, log
        self._router, self._names = router, gateway.cluster.names
        self._arrived = self._answered = 0
        self._expected_correct = 0.0
        self._goal_changes = 0
        self._drops: Counter[DropReason] = Counter()
        self._routes: Counter[str] = Counter()
        self._latency_s = Histogram(SECONDS)
        self._batch, self._batch_s = Histogram(BATCHES), Histogram(SECONDS)
        self._segments: Counter[tuple[str, str, int, str]] = Counter()
        self._active_j: defaultdict[str, float] = defaultdict(float)
        self._drawn_j: defaultdict[str, float] = defaultdict(float)
        self._sampled_s: dict[str, float] = {}
        self._snapshots: dict[str, ServerSnapshot] = {}
        self._page: HttpResponse | None = None
        self._round = NextRound(self._forget_page)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Count one entry of the event log."""
        if machine != GATEWAY_NAME:
            return
        if isinstance(event, RequestsArrived):
            self._arrived += count_examples(event.requests)
        elif isinstance(event, SegmentFinished):
            self._ran(event)
        elif isinstance(event, TelemetryReceived):
            server = self._names[event.server]  # energy is what it draws, over time
            passed_s = now_s - self._sampled_s.get(server, now_s)
            self._drawn_j[server] += event.snapshot.power_w * passed_s
            self._sampled_s[server], self._snapshots[server] = now_s, event.snapshot
        elif isinstance(event, GoalChanged):
            self._goal_changes += 1
        for command in commands:
            if isinstance(command, SendBlock):
                is_counted = command.reason in self._routes or len(self._routes) < MAX_REASONS
                self._routes[command.reason if is_counted else "other"] += 1
            elif isinstance(command, Answer):
                self._answer(command, now_s)
            elif isinstance(command, Drop):
                self._drops[command.reason] += count_examples(command.requests)

    def page(self) -> HttpResponse:
        """Return the metrics in the Prometheus text format; all who ask in one round get the same page."""
        if self._page is None:
            size, full = (0, False) if self._log is None else (self._log.size_bytes, self._log.is_full)
            lines = [*self._tally.lines(), *self._examples(), *self._window(self._frame()), *self._servers()]
            lines += family("slim_event_log_bytes", "Size of the gateway's event log.", size)
            lines += family("slim_event_log_full", "1 once the event log has stopped.", full)
            body = ("\n".join(lines) + "\n").encode()
            self._page = HttpResponse(status=200, body=body, content_type=CONTENT_TYPE)
            self._round.expect()
        return self._page

    def _forget_page(self) -> None:
        self._page = None

    def _ran(self, event: SegmentFinished) -> None:
        """Count a batch that a server has run."""
        server, model = self._names[event.server], self._gateway.cluster.models[event.blocks[0].key.model]
        self._active_j[server] += event.energy_j
        self._batch_s.observe(event.busy_s)
        self._batch.observe(event.size)
        batches = self._tally.model(model.name, model.spec.version).batches
        count, busy_s = batches.get(event.size, (0, 0.0))
        batches[event.size] = count + 1, busy_s + event.busy_s
        for leg in event.key.legs:
            choice = model.spec.segments[leg.segment][leg.choice]
            self._segments[server, model.name, leg.segment, choice] += event.examples

    def _answer(self, command: Answer, now_s: float) -> None:
        models = self._gateway.cluster.models
        for request, count in alike(command.requests):
            self._latency_s.observe(now_s - request.arrival_s, count)
            model = models[request.model]
            if model.quality.is_measured:
                self._expected_correct += count * model.expected_accuracy(request.path, request.trail)
        self._answered += count_examples(command.requests)

    def _examples(self) -> list[str]:
        gateway, version = self._gateway, platform.python_version()
        ends: list[tuple[Labels, float]] = [({"outcome": "answered", "reason": ""}, self._answered)]
        ends += [({"outcome": "dropped", "reason": why}, n) for why, n in sorted(self._drops.items())]
        served = [
            ({"server": server, "model": model, "segment": str(segment), "choice": choice}, float(count))
            for (server, model, segment, choice), count in sorted(self._segments.items())
        ]
        routes = [({"reason": why}, float(count)) for why, count in sorted(self._routes.items())]
        router = gateway.router
        guarded = sorted(router.counts.items()) if isinstance(router, GuardedRouter) else []
        guard = [({"decided": who}, float(count)) for who, count in guarded]
        watched = router.router if isinstance(router, GuardedRouter) else None
        trusted = watched.trust if isinstance(watched, GoalRouter) else {}
        build = {"version": __version__, "python": version, "router": split_goal(self._router)[0]}
        return [
            *family("slim_build_info", "Always 1; what runs is in the labels.", [(build, 1.0)]),
            *self._goals(),
            *family(
                "slim_confidence_trusted",
                "1 while a model's confidence is relied on, 0 after checks have shown that it lies.",
                [({"model": name}, float(trust.holds)) for name, trust in sorted(trusted.items())],
            ),
            *family("slim_images_arrived_total", "Examples accepted.", self._arrived),
            *family("slim_images_total", "Examples that ended, by outcome and reason.", ends),
            *family(
                "slim_images_correct_expected_total",
                "Expected correct answers: accuracy of the plans served, summed over answered examples.",
                self._expected_correct,
            ),
            *histogram("slim_image_latency_seconds", "Examples, arrival to answer.", self._latency_s),
            *histogram("slim_batch_images", "Examples per batch.", self._batch),
            *histogram("slim_batch_seconds", "Device time per batch.", self._batch_s),
            *family("slim_segment_images_total", "Examples by server, model, segment and choice.", served),
            *family("slim_routes_total", "Blocks sent, by the router's reason.", routes),
            *family("slim_guard_decisions_total", "Decisions of a guarded router, by who decided.", guard),
            *family("slim_images_in_system", "Examples under way.", gateway.in_system),
            *family("slim_gateway_queue_images", "Examples not yet routed.", gateway.seen.fifo),
        ]

    def _goals(self) -> list[str]:
        """Return the goal of each model as it is now, and how often goals were changed."""
        goal = goal_of(self._gateway.router)
        models = [] if goal is None else self._gateway.cluster.active
        goals = [
            ({"model": m.name, "goal": format_goal(goal.of(m.name))}, 1.0) for m in models if goal is not None
        ]
        return [
            *family("slim_goal_info", "Always 1; each model's goal is in the labels.", goals),
            *family("slim_goal_changes_total", "Times that the goal was changed.", float(self._goal_changes)),
        ]

    def _window(self, frame: Frame) -> list[str]:
        """Return what the dashboard has: verdicts, outcomes, and the gauges over the last seconds."""
        judged = {"minute": frame.limits, "run": frame.run_limits}
        verdicts = [
            ({"limit": one.limit, "over": over}, WORDS[one.word])
            for over, limits in judged.items()
            for one in limits
        ]
        ends = [({"outcome": name}, float(count)) for name, count in frame.outcomes.items()]
        accuracy, bound, share = (
            nan if figure is None else figure
            for figure in (frame.accuracy, frame.bound_accuracy, frame.bound_share)
        )
        over = "over the last 10 s"
        about_share = f"Expected correct answers over arrivals, as a share of the fluid bound, {over}."
        return [
            *family("slim_goal_limit_verdict", "1 for kept, 0 for undecided, -1 for broken.", verdicts),
            *family("slim_offered_images_total", "Examples offered that ended, by outcome.", ends),
            *family("slim_predicted_accuracy", f"Mean accuracy of the plans served {over}.", accuracy),
            *family("slim_bound_accuracy", "The fluid bound at the arrival rate, all servers up.", bound),
            *family("slim_bound_share", about_share, share),
        ]

    def _servers(self) -> list[str]:
        seen, names = self._gateway.seen, self._gateway.cluster.names
        given_up = np.array([index in self._gateway.given_up for index in range(len(names))])
        waits = np.isin(np.arange(len(names)), list(self._waiting()))
        columns = {
            "slim_server_waits_for_core": ("1 while the server is silent and gets no core.", waits),
            "slim_server_given_up": ("1 if the server cannot be started.", given_up),
            "slim_server_up": ("1 while the server accepts work.", seen.alive),
            "slim_server_outstanding_images": ("Examples sent and not back.", seen.outstanding),
            "slim_server_backlog_seconds": ("Device time of what is outstanding.", seen.backlog_s),
            "slim_server_utilization_ratio": (
                "Busy share of the last period, by its sensor.",
                seen.utilization,
            ),
            "slim_server_power_watts": ("Power over the last period.", seen.power_w),
            "slim_server_memory_bytes": ("Memory of loaded instances, by its sensor.", seen.vram_bytes),
        }
        lines = []
        for name, (about, values) in columns.items():
            rows = [({"server": server}, float(values[i])) for i, server in enumerate(names)]
            lines += family(name, about, rows)
        lines += self._sensors()
        energies = {
            "slim_energy_active_joules_total": ("Energy of batches above idle.", self._active_j),
            "slim_energy_joules_total": ("Energy drawn, idle included.", self._drawn_j),
        }
        sources = {server: snapshot.power_source for server, snapshot in self._snapshots.items()}
        for name, (about, joules) in energies.items():
            rows = [
                ({"server": server, "source": sources.get(server, "")}, float(joules[server]))
                for server in names
            ]
            lines += family(name, about, rows)
        return lines

    def _sensors(self) -> list[str]:
        """Name what utilization and memory of each server were asked of, and count the loads they refused."""
        named, refused, faults = [], [], []
        for server, snapshot in self._snapshots.items():
            sources = {"utilization": snapshot.utilization_source, "memory": snapshot.memory_source}
            named.append(({"server": server, **sources}, 1.0))
            refused += [
                ({"server": server, "cause": cause}, float(snapshot.refused.get(cause, 0)))
                for cause in ("memory", "utilization")
            ]
            counts = {"not launched": 0, "run one by one": 0} | (snapshot.faults or {})
            faults += [({"server": server, "fault": one}, float(count)) for one, count in counts.items()]
        return [
            *family("slim_server_sensor_info", "1; the sources of utilization and memory.", named),
            *family("slim_server_refused_loads_total", "Times an instance was not loaded.", refused),
            *family("slim_server_batch_faults_total", "Batches not launched, or run one by one.", faults),
        ]
