import pytest

from cluster import MODEL, block, requests, toy_model
from slimsched.core.clock import Wake
from slimsched.core.config import ConfigError
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.request import DropReason
from slimsched.serving.gateway.messages import (
    Answer,
    Drop,
    RequestsArrived,
    SegmentFinished,
    TelemetryReceived,
)
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scheduler.scheduler import BatchFinished
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Meter, Summary


def summary(meter: Meter, in_system: int = 0, seconds: float = 10.0) -> Summary:
    return meter.summary(
        router="r",
        seconds=seconds,
        in_system=in_system,
        bound_accuracy=0.76,
        wall_s=1.0,
        idle_w=30.0,
        energy_source="modelled",
    )


def test_figures_are_a_fold_over_the_log() -> None:
    meter = Meter([MODEL])
    arrived = RequestsArrived(requests=requests(10, deadline_s=3.0))
    meter.observe(0.0, "gateway", arrived, [])
    full, quarter = (1.0,) * 4, (0.25,) * 4
    done = Answer(
        requests=(
            *requests(1, widths=full, deadline_s=3.0),
            *requests(1, first=1, widths=quarter, deadline_s=3.0),
        )
    )
    meter.observe(2.0, "gateway", Wake(), [done])
    late = Answer(requests=requests(1, first=2, widths=full, deadline_s=3.0))
    gone = Drop(requests=requests(1, first=3), reason=DropReason.QUEUE_FULL)
    meter.observe(4.0, "gateway", Wake(), [late, gone])
    ran = SegmentFinished(server=0, choice=1, blocks=(block(1, 3),), size=3, busy_s=0.2, energy_j=6.0)
    meter.observe(0.5, "gateway", ran, [])
    meter.observe(0.5, "server-0", BatchFinished(instance=1, busy_s=0.2, energy_j=6.0), [])
    for server, (utilization, power_w) in enumerate([(1.0, 200.0), (0.5, 100.0)]):
        snapshot = ServerSnapshot(
            taken_s=1.0, utilization=utilization, power_w=power_w, vram_bytes=0, queued=(), instances=0
        )
        meter.observe(1.001, "gateway", TelemetryReceived(server=server, snapshot=snapshot), [])
    row = summary(meter, in_system=6)
    assert row.arrived == 10
    assert (row.completed, row.dropped, row.unfinished, row.lost, row.duplicates) == (3, 1, 6, 0, 0)
    assert row.drops == {"queue full": 1}
    assert row.latency_mean_s == pytest.approx((2 + 2 + 4) / 3)
    assert row.slo_attainment == pytest.approx(2 / 10)
    assert row.accuracy == pytest.approx((2 * 0.7643 + 0.7030) / 3)
    assert row.energy_j_per_request == pytest.approx(6.0 / 3)
    assert row.energy_paper_j == pytest.approx(150.0 * row.latency_mean_s)
    assert row.energy_idle_j == pytest.approx(300.0)
    assert row.gpu_var == pytest.approx(0.0625)
    assert row.batch_mean == 3.0
    assert row.choices == pytest.approx({"0.25": 1 / 3, "0.5": 0, "0.75": 0, "1.0": 2 / 3})
    assert row.bound_share == pytest.approx(row.accuracy_prior * 3 / (10 * 0.76))


def test_an_answer_given_twice_or_a_request_gone_missing_is_counted() -> None:
    meter = Meter([MODEL])
    meter.observe(0.0, "gateway", RequestsArrived(requests=requests(3)), [])
    twice = Answer(requests=requests(1, widths=(1.0,) * 4) * 2)
    meter.observe(1.0, "gateway", RequestsArrived(requests=()), [twice])
    row = summary(meter, in_system=1)
    assert (row.duplicates, row.lost) == (1, 1)


def test_after_a_warm_up_figures_are_of_the_rest_alone_and_nothing_is_lost() -> None:
    scenario = load_scenario("paper", accuracy="paper").with_load(rate_per_s=4000.0, seconds=1.0)
    whole = simulate(scenario, "sed").summary
    rest = simulate(scenario.with_load(warmup_s=0.6), "sed").summary
    assert 0.35 * whole.arrived < rest.arrived < 0.45 * whole.arrived
    assert rest.seconds == pytest.approx(0.4)
    assert rest.lost == 0
    assert rest.bound_share > whole.bound_share
    with pytest.raises(ConfigError, match="leave time to measure"):
        scenario.with_load(warmup_s=1.0)


def test_several_models_have_figures_of_their_own() -> None:
    exits = toy_model("exits", segments=[("exit", "on"), ("a",)], plans=[(0,), (1, 0)], accuracies=[0.5, 0.7])
    meter = Meter([MODEL, exits.numbered(1)])
    meter.observe(0.0, "gateway", RequestsArrived(requests=requests(4)), [])
    slim = Answer(requests=requests(1, widths=(1.0,) * 4))
    early = Answer(requests=requests(2, first=1, model=1, path=(0,)))
    whole = Answer(requests=requests(1, first=3, model=1, path=(1, 0)))
    meter.observe(1.0, "gateway", Wake(), [slim, early])
    meter.observe(3.0, "gateway", Wake(), [whole])
    row = summary(meter)
    assert {name: one.completed for name, one in row.models.items()} == {"slimresnet": 1, "exits": 3}
    assert row.models["exits"].accuracy_prior == pytest.approx((0.5 + 0.5 + 0.7) / 3)
    assert row.models["exits"].latency_mean_s == pytest.approx(5 / 3)
    assert row.models["slimresnet"].accuracy == pytest.approx(0.7643)
    assert row.accuracy_prior == pytest.approx((0.7643 + 0.5 + 0.5 + 0.7) / 4)
    shares = {name: share for name, share in row.choices.items() if share}
    assert shares == pytest.approx({"1.0": 4 / 8, "exit": 2 / 8, "on": 1 / 8, "a": 1 / 8})
    assert meter.answers().model.tolist() == [0, 1, 1, 1]
    assert meter.answers().plan.tolist() == [255, 0, 0, 1]


def test_one_model_alone_needs_no_figures_of_its_own() -> None:
    meter = Meter([MODEL])
    meter.observe(0.0, "gateway", Wake(), [Answer(requests=requests(1, widths=(1.0,) * 4))])
    assert summary(meter).models == {}
