"""Measuring a device: the table is complete, an interrupted run goes on, power is read between ticks."""

from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

from cluster import MODEL, key
from hosting import cpu_executor
from slimsched.models.loading import trained_model
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.models.spec import START
from slimsched.serving.live.sensors import Modelled, Reading
from slimsched.serving.measure.profile import MeasuringPlan, Profiler, active_w, mean_power_w


@pytest.fixture(scope="module")
def model() -> SlimResNetModel:
    return trained_model()


class Ticking:
    """A counter that moves in steps, as NVML's does: 50 W, every 20 ms."""

    source = "ticks"
    error = 0.0

    def read(self, active_j: float) -> Reading:
        now_s = monotonic()
        return Reading(at_s=now_s, energy_j=50.0 * (now_s // 0.02) * 0.02)


def test_power_is_read_from_tick_to_tick() -> None:
    assert mean_power_w(Ticking(), lambda: sleep(0.001), at_least_s=0.1) == pytest.approx(50.0, rel=0.15)


def test_a_counter_that_stands_still_gives_no_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimsched.serving.measure.profile.PATIENCE_S", 0.05)
    assert mean_power_w(Modelled(0.0), lambda: sleep(0.001), at_least_s=0.1) is None


def test_watts_between_measured_points_are_interpolated() -> None:
    watts = {
        (one, size): watt
        for narrow, wide in ((key(0, 0.25), key(0, 1.0)), (key(1, 0.25, 0.25), key(1, 1.0, 1.0)))
        for one, size, watt in ((narrow, 1, 10.0), (narrow, 16, 50.0), (wide, 1, 20.0), (wide, 16, 100.0))
    }
    assert active_w(watts, key(0, 0.25), 4) == pytest.approx(30.0)
    assert active_w(watts, key(0, 1.0), 64) == pytest.approx(100.0)
    assert active_w(watts, key(1, 0.5, 0.25), 1) == pytest.approx(10.0 + 10.0 / 3)
    assert active_w(watts, key(2, 0.5, 0.25), 1) is None


def test_a_measured_device_becomes_a_profile_and_an_interrupted_run_goes_on(
    model: SlimResNetModel, tmp_path: Path
) -> None:
    plan = MeasuringPlan(batches=(1,), concurrency=(1,), repeats=3, warm=0, window_s=0.02)
    part, seen = tmp_path / "part", []
    profiler = Profiler(cpu_executor(model), MODEL, Ticking(), plan, part, 40.0, share=0.5)

    def stop(done: int, of: int, cell: object) -> None:
        seen.append(cell)
        if len(seen) == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiler.measure(stop)
    kept = msgspec.json.decode(part.read_bytes())
    assert len(kept["cells"]) == 30
    again = Profiler(cpu_executor(model), MODEL, Ticking(), plan, part, 40.0, share=0.5)
    again.measure(lambda done, of, cell: None)
    record = again.record("mine", "measured: here", {})
    profile = record.profile(MODEL)
    assert (record.model, record.format) == ("slimresnet", "slim-profile-2")
    assert record.idle_w == 20.0
    assert "watts of 8 cells" in record.energy_source
    assert profile.latency_s(key(3, 1.0, 1.0), 1) > 0
    first = kept["cells"][f"0/0/{START}/1/1"]["latency_s"]
    assert profile.latency_s(key(0, 0.25), 1) == first, "what was measured is not measured again"


@pytest.mark.slow
def test_where_no_meter_can_read_energy_is_the_power_given_times_latency(
    model: SlimResNetModel, tmp_path: Path
) -> None:
    plan = MeasuringPlan(batches=(1,), concurrency=(1,), repeats=3, warm=0, active_w=7.0)
    profiler = Profiler(cpu_executor(model), MODEL, Modelled(5.0), plan, tmp_path / "part", 5.0)
    profiler.measure(lambda done, of, cell: None)
    record = profiler.record("mine", "measured: here", {})
    profile, middle = record.profile(MODEL), key(2, 0.5, 0.75)
    assert profile.energy_j(middle, 1) == pytest.approx(7.0 * profile.latency_s(middle, 1))
    assert record.energy_source.startswith("modelled: 7 W while busy")
