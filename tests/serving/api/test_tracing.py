"""Spans of a simulated run, read back from memory."""

from collections import defaultdict

import pytest

from slimsched.serving.api.metrics import SegmentSpans
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF


def test_every_answered_image_has_one_span_per_segment() -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    scenario = load_scenario("paper").with_load(rate_per_s=500.0, seconds=0.5)
    spans = SegmentSpans(provider.get_tracer("test"), lambda: scenario.cluster)
    row = simulate(scenario, "sed", seed=0, drain=True, observers=[spans]).summary
    children = defaultdict(list)
    for span in kept.get_finished_spans():
        if span.parent is not None:
            children[span.parent.span_id].append(span)
    images = [span for span in kept.get_finished_spans() if span.parent is None]
    assert len(images) == row.completed == row.arrived
    for image in images:
        assert image.attributes["slim.outcome"] == "answered"
        segments = sorted(children[image.context.span_id], key=lambda span: span.start_time)
        assert [span.attributes["slim.segment"] for span in segments] == [0, 1, 2, 3]
        choices = [span.attributes["slim.choice"] for span in segments]
        assert image.attributes["slim.plan"] == ",".join(choices)
        assert set(choices) <= {"0.25", "0.5", "0.75", "1.0"}
        assert image.name == "request"
        assert image.start_time <= segments[0].start_time
        assert segments[-1].end_time <= image.end_time


def test_an_image_that_is_not_sampled_costs_no_memory() -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    scenario = load_scenario("paper").with_load(rate_per_s=200.0, seconds=0.2)
    spans = SegmentSpans(provider.get_tracer("test"), lambda: scenario.cluster)
    simulate(scenario, "sed", seed=0, drain=True, observers=[spans])
    assert not spans._open
