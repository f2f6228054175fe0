"""The history of instances: what Algorithm 1 did, told from events and commands, and its picture."""

import sys
from pathlib import Path

from cluster import MEGABYTE, MODEL, choice
from slimsched.serving.domain.cluster import GATEWAY_NAME, Instance, ServerSnapshot
from slimsched.serving.gateway.messages import TelemetryReceived
from slimsched.serving.scheduler.scheduler import (
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    SchedulerOptions,
    Started,
    TelemetrySampled,
    UnloadInstance,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "paper"))

from algorithm1 import BLOCKED, FIRST, SCALE_UP, UNLOAD, FleetHistory, plot_fleets


def load(number: int, width: float) -> LoadInstance:
    return LoadInstance(instance=Instance(id=number, segment=0, choice=choice(width), memory_bytes=MEGABYTE))


def report(**refused: int) -> TelemetryReceived:
    snapshot = ServerSnapshot(
        taken_s=0.0,
        utilization=0.5,
        power_w=1.0,
        vram_bytes=1,
        queued=(),
        instances=1,
        utilization_source="a sensor",
        refused=refused,
    )
    return TelemetryReceived(server=0, snapshot=snapshot)


def told() -> FleetHistory:
    """A wide instance, a narrow one beside it, a wider one than that, and an unload."""
    history = FleetHistory(["one"], nested=True)
    history.observe(0.0, "one", Started(), [load(1, 0.5), load(2, 0.25), load(3, 1.0)])
    for number in (1, 2, 3):
        history.observe(1.0, "one", InstanceLoaded(instance=number), [])
    history.observe(2.0, "one", TelemetrySampled(utilization=0.7, power_w=1.0, vram_bytes=5), [])
    history.observe(2.0, GATEWAY_NAME, report(memory=2), [])
    history.observe(2.1, GATEWAY_NAME, report(memory=2, utilization=1), [])
    history.observe(2.2, GATEWAY_NAME, report(memory=5, utilization=1), [])
    history.observe(3.0, "one", InstanceLoaded(instance=3), [UnloadInstance(instance=2)])
    history.observe(3.1, "one", InstanceUnloaded(instance=2), [])
    return history


def test_an_instance_for_what_another_could_run_is_a_scale_up() -> None:
    one = told().servers["one"]
    assert (one.count(FIRST), one.count(SCALE_UP), one.count(UNLOAD)) == (2, 1, 1)


def test_refused_loads_are_marked_when_their_count_grows() -> None:
    one = told().servers["one"]
    assert one.count(BLOCKED["memory"]) == 5
    assert [mark.at_s for mark in one.marks if mark.kind == BLOCKED["memory"]] == [2.0, 2.2]
    assert one.count(BLOCKED["utilization"]) == 1
    assert one.utilization_source == "a sensor"


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "algorithm1.png"
    history = told()
    plot_fleets(history.servers, {"one": SchedulerOptions()}, MODEL.spec.segments, "title", path)
    assert path.stat().st_size > 10_000
