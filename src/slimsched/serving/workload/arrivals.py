"""Arrival processes: when requests arrive. Each is a pure function of rate, length and random generator."""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.serving.workload.modulated import shipped_process

Times = NDArray[np.float64]


def poisson(rate_per_s: float, seconds: float, rng: Generator) -> Times:
    """Independent arrivals at a constant mean rate."""
    return np.sort(rng.uniform(0.0, seconds, rng.poisson(rate_per_s * seconds)))


def bursty(
    rate_per_s: float,
    seconds: float,
    rng: Generator,
    *,
    peak: float = 3.0,
    calm_s: float = 4.0,
    burst_s: float = 1.0,
) -> Times:
    """Alternate calm and burst phases of random length; the rate in a burst is `peak` × the calm rate."""
    calm_rate = rate_per_s * (calm_s + burst_s) / (calm_s + peak * burst_s)
    pieces, now_s, burst = [], 0.0, False
    while now_s < seconds:
        length_s = min(rng.exponential(burst_s if burst else calm_s), seconds - now_s)
        pieces.append(now_s + poisson(calm_rate * (peak if burst else 1.0), length_s, rng))
        now_s += length_s
        burst = not burst
    return np.concatenate(pieces)


def diurnal(
    rate_per_s: float, seconds: float, rng: Generator, *, period_s: float = 60.0, depth: float = 0.6
) -> Times:
    """Swing the rate by ±depth around its mean once per period, like a short day."""
    candidates = poisson(rate_per_s * (1.0 + depth), seconds, rng)
    wanted = (1.0 + depth * np.sin(2 * np.pi * candidates / period_s)) / (1.0 + depth)
    return candidates[rng.uniform(size=len(candidates)) < wanted]


def step(
    rate_per_s: float, seconds: float, rng: Generator, *, low: float = 0.5, high: float = 1.5, at: float = 0.5
) -> Times:
    """Jump from `low` to `high` times the rate after the share `at` of the time."""
    edge_s = at * seconds
    after = edge_s + poisson(rate_per_s * high, seconds - edge_s, rng)
    return np.concatenate([poisson(rate_per_s * low, edge_s, rng), after])


def fitted(rate_per_s: float, seconds: float, rng: Generator) -> Times:
    """Draw from a Markov-modulated Poisson process that was fitted to a real trace (see `modulated.py`)."""
    return shipped_process().times_s(rate_per_s, seconds, rng)


ARRIVALS: dict[str, Callable[..., Times]] = {
    "poisson": poisson,
    "bursty": bursty,
    "fitted": fitted,
    "diurnal": diurnal,
    "step": step,
}


def arrivals(kind: str, rate_per_s: float, seconds: float, rng: Generator, **shape: float) -> Times:
    """Draw the arrivals of a named process."""
    if kind not in ARRIVALS:
        raise UnknownNameError("arrival process", kind, [*ARRIVALS, "or the path of a trace file"])
    check_load(rate_per_s, seconds)
    try:
        return ARRIVALS[kind](rate_per_s, seconds, rng, **shape)
    except TypeError as error:
        raise ConfigError(f"arrival process '{kind}': {str(error).split('() ')[-1]}") from None


def check_load(rate_per_s: float, seconds: float) -> None:
    """Refuse a rate or a length that is not above 0."""
    if not rate_per_s > 0:
        raise ConfigError(f"rate_per_s is {rate_per_s:g}; a load needs a rate above 0 requests per second")
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds:g}; a run needs a length above 0 seconds")
