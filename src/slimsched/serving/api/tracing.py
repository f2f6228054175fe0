"""OpenTelemetry traces from the event log: one span per example, and below it one span per segment."""

from collections.abc import Callable, Sequence
from time import time_ns
from typing import Any

from msgspec import Struct

from slimsched import __version__
from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.request import Request, each_example, ids_of
from slimsched.serving.gateway.messages import Answer, Drop, RequestsArrived, SegmentFinished, SendBlock


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
        now_ns = self._epoch_ns(now_s)
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

    def _epoch_ns(self, now_s: float) -> int:
        if self._zero_ns is None:
            self._zero_ns = time_ns() - int(1e9 * now_s)
        return self._zero_ns + int(1e9 * now_s)


class Traces:
    """The spans, and the provider that exports them."""

    def __init__(self, provider: Any, cluster: Callable[[], Cluster]) -> None:
        self._provider = provider
        self.spans = SegmentSpans(provider.get_tracer("slimsched", __version__), cluster)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def otlp_traces(cluster: Callable[[], Cluster]) -> Traces:
    """Return traces that are sent by OTLP over HTTP.

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
    return Traces(provider, cluster)
