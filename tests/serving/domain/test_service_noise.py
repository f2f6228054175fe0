"""Service noise: its size, its seeds, and that it can be switched off."""

import numpy as np
import pytest
from msgspec.structs import replace

from slimsched.serving.domain.profile import NoiseSource, ServiceCost, ServiceNoise
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper").with_load(rate_per_s=1000.0, seconds=0.5)
STILL = ServiceNoise(batches=0.0, drift=0.0)


def test_batches_spread_as_much_as_the_profile_says_around_the_same_mean() -> None:
    source = NoiseSource(ServiceNoise(drift=0.0), 0.2, (1,))
    factors = np.array([source.factor(0.0) for _ in range(20_000)])
    low, high = np.percentile(factors, (10, 90))
    assert high / low - 1.0 == pytest.approx(0.2, abs=0.01)
    assert factors.mean() == pytest.approx(1.0, abs=0.005)


def test_the_pace_drifts_slowly() -> None:
    source = NoiseSource(ServiceNoise(batches=0.0, drift=0.1), 0.2, (1,))
    pace = np.log([source.factor(0.1 * step + 0.05) for step in range(4000)])
    assert pace.std() == pytest.approx(0.1, rel=0.2)
    assert np.corrcoef(pace[:-1], pace[1:])[0, 1] > 0.85
    assert abs(np.corrcoef(pace[:-100], pace[100:])[0, 1]) < 0.3


def test_a_seed_repeats_and_servers_differ() -> None:
    def drawn(*seed: int) -> list[float]:
        source = NoiseSource(ServiceNoise(), 0.2, seed)
        return [source.factor(0.3 * number) for number in range(5)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(1, 1)


def test_it_is_on_unless_the_scenario_says_otherwise_or_the_pace_was_measured() -> None:
    assert all(PAPER.noises(0))
    assert not any(replace(PAPER, noise=STILL).noises(0))
    measured = ServiceCost(pace=(1.0, 1.2))
    assert [
        source is None for source in replace(PAPER, costs=(measured, ServiceCost(), measured)).noises(0)
    ] == [
        True,
        False,
        True,
    ]


def test_a_noisy_run_repeats_and_differs_from_a_still_one() -> None:
    noisy, again = (simulate(PAPER, "sed", seed=3).summary.latency_mean_s for _ in range(2))
    still = simulate(replace(PAPER, noise=STILL), "sed", seed=3).summary.latency_mean_s
    assert noisy == again
    assert noisy != still
    assert noisy == pytest.approx(still, rel=0.1)


def test_measured_profiles_bring_their_own_spread() -> None:
    laptop = load_scenario("laptop")
    assert laptop.cluster.profiles[0].spread == pytest.approx(0.0925, abs=0.001)
    assert laptop.cluster.profiles[1].spread == laptop.cluster.profiles[0].spread  # slowed, not noisier
