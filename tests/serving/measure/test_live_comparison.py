"""Several live runs on servers that stay up: each run's requests are its own, and all are answered."""

import numpy as np
import pytest

from slimsched.serving.live.sensors import Modelled
from slimsched.serving.live.wire import run
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.measure.live_runs import compare_live, in_turn
from slimsched.serving.scenario.files import load_scenario


@pytest.mark.slow
def test_routers_run_one_after_another_on_the_same_servers() -> None:
    scenario = load_scenario("laptop").with_load(rate_per_s=40.0, seconds=0.5, deadline_s=5.0)
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    seen: list[str] = []
    rows = run(
        compare_live(
            scenario,
            in_turn(["sed", "random"], scenario, seed=1, rounds=2),
            [ExampleSet(inputs=(images,), labels=np.zeros(20, dtype=np.int64))],
            meter=Modelled(10.0),
            progress=seen.append,
        )
    )
    assert seen == [row.router for row in rows] == ["sed", "random", "random", "sed"]
    for row in rows:
        assert row.summary.completed == row.summary.arrived > 5
        assert row.summary.lost == row.summary.duplicates == 0
        assert row.accuracy_on_images is not None
        assert row.energy_j > 0
        assert row.measured(idle_w=0.0).summary.accuracy == row.accuracy_on_images
