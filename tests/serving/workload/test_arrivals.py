import runpy
from pathlib import Path

import numpy as np
import pytest

from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.serving.workload.arrivals import ARRIVALS, arrivals

FIT_ARRIVALS = Path(__file__).parents[3] / "benchmarks" / "fit_arrivals.py"


@pytest.mark.parametrize("kind", ARRIVALS)
def test_arrivals_come_in_order_within_the_time_at_about_the_rate(kind: str) -> None:
    times = arrivals(kind, 200.0, 300.0, np.random.default_rng(0))
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 300
    assert len(times) == pytest.approx(200 * 300, rel=0.15)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_the_same_seed_gives_the_same_arrivals(kind: str) -> None:
    one, two, other = (arrivals(kind, 50.0, 20.0, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert one.tolist() == two.tolist() != other.tolist()


def test_bursts_vary_more_than_poisson() -> None:
    def dispersion(kind: str) -> float:
        times = arrivals(kind, 100.0, 500.0, np.random.default_rng(0))
        counts = np.bincount(times.astype(int), minlength=500)
        return float(counts.var() / counts.mean())

    assert dispersion("poisson") < 1.3 < 5 < dispersion("bursty")


def test_the_fitted_process_varies_as_its_trace_does_at_any_rate() -> None:
    """Its index of dispersion is about 16 over windows of 333 requests, which is one minute of the trace."""
    for rate in (5.53, 100.0):
        times = arrivals("fitted", rate, 200_000 / rate, np.random.default_rng(0))
        counts = np.histogram(times, np.arange(0.0, 200_000 / rate, 333 / rate))[0]
        assert 10 < counts.var() / counts.mean() < 25


@pytest.mark.slow
def test_a_fit_finds_the_process_that_made_the_counts() -> None:
    rng = np.random.default_rng(0)
    burst = (np.arange(4000) // 40) % 5 == 0
    fit = runpy.run_path(str(FIT_ARRIVALS))["fit"]
    process = fit(rng.poisson(np.where(burst, 30.0, 10.0)).astype(float), 1.0, 2)
    assert process.rate_per_s == pytest.approx(14.0, rel=0.05)
    assert process.rates[1] / process.rates[0] == pytest.approx(3.0, rel=0.05)
    assert process.lasts_s == pytest.approx((160.0, 40.0), rel=0.1)
    assert process.share_of_time() == pytest.approx([0.8, 0.2], abs=0.05)


def test_a_step_jumps_where_it_should() -> None:
    times = arrivals("step", 100.0, 100.0, np.random.default_rng(0), low=0.5, high=2.0, at=0.25)
    assert (times < 25).sum() == pytest.approx(25 * 50, rel=0.1)
    assert (times >= 25).sum() == pytest.approx(75 * 200, rel=0.1)


def test_settings_without_meaning_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="rate_per_s is -3; a load needs a rate above 0"):
        arrivals("poisson", -3.0, 1.0, rng)
    with pytest.raises(ConfigError, match="seconds is 0"):
        arrivals("poisson", 3.0, 0.0, rng)
    with pytest.raises(UnknownNameError, match="unknown arrival process 'tidal'; known: poisson, bursty"):
        arrivals("tidal", 3.0, 1.0, rng)
    with pytest.raises(ConfigError, match="unknown key 'hight'; known keys: low, high, at"):
        arrivals("step", 3.0, 1.0, rng, hight=1.0)
