"""Arrival processes: when requests arrive. Each is a pure function of rate, length and random generator."""

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.kernel.quantity import Amount, Factor, PhaseSeconds, Share
from slimsched.kernel.section import read_section
from slimsched.serving.workload.modulated import shipped_process

Times = NDArray[np.float64]

MOST_REQUESTS = 1e8
"""Requests that one run may have: more would not fit into memory."""


class NoShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of a process that only a rate describes."""


class BurstShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean lengths of the two phases; the rate in a burst is `peak` × the calm rate."""

    peak: Factor = 3.0
    calm_s: PhaseSeconds = 4.0
    burst_s: PhaseSeconds = 1.0


class DayShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a day is, how far the rate swings around its mean, and at which part of a day a run starts.

    A day starts at its mean rate and rises; at 0.75 of a day the rate is lowest.
    """

    period_s: PhaseSeconds = 60.0
    depth: Share = 0.6
    start: Share = 0.0


class StepShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rates before and after the step, as multiples of the mean, and when it comes."""

    low: Amount = 0.5
    high: Amount = 1.5
    at: Share = 0.5


NO_SHAPE = NoShape()


def poisson(rate_per_s: float, seconds: float, rng: Generator, shape: NoShape = NO_SHAPE) -> Times:
    """Independent arrivals at a constant mean rate."""
    return np.sort(rng.uniform(0.0, seconds, rng.poisson(rate_per_s * seconds)))


def bursty(rate_per_s: float, seconds: float, rng: Generator, shape: BurstShape) -> Times:
    """Alternate calm and burst phases of random length."""
    peak, calm_s, burst_s = shape.peak, shape.calm_s, shape.burst_s
    calm_rate = rate_per_s * (calm_s + burst_s) / (calm_s + peak * burst_s)
    pieces, now_s, burst = [], 0.0, False
    while now_s < seconds:
        length_s = min(rng.exponential(burst_s if burst else calm_s), seconds - now_s)
        pieces.append(now_s + poisson(calm_rate * (peak if burst else 1.0), length_s, rng))
        now_s += length_s
        burst = not burst
    return np.concatenate(pieces)


def diurnal(rate_per_s: float, seconds: float, rng: Generator, shape: DayShape) -> Times:
    """Swing the rate by ±depth around its mean once per period, like a short day."""
    depth = shape.depth
    candidates = poisson(rate_per_s * (1.0 + depth), seconds, rng)
    wanted = (1.0 + depth * np.sin(2 * np.pi * (candidates / shape.period_s + shape.start))) / (1.0 + depth)
    return candidates[rng.uniform(size=len(candidates)) < wanted]


def step(rate_per_s: float, seconds: float, rng: Generator, shape: StepShape) -> Times:
    """Jump from `low` to `high` times the rate after the share `at` of the time."""
    edge_s = shape.at * seconds
    after = edge_s + poisson(rate_per_s * shape.high, seconds - edge_s, rng)
    return np.concatenate([poisson(rate_per_s * shape.low, edge_s, rng), after])


def fitted(rate_per_s: float, seconds: float, rng: Generator, shape: NoShape = NO_SHAPE) -> Times:
    """Draw from a Markov-modulated Poisson process that was fitted to a real trace (see `modulated.py`)."""
    return shipped_process().times_s(rate_per_s, seconds, rng)


ARRIVALS: dict[str, tuple[Callable[..., Times], type[Struct]]] = {
    "poisson": (poisson, NoShape),
    "bursty": (bursty, BurstShape),
    "fitted": (fitted, NoShape),
    "diurnal": (diurnal, DayShape),
    "step": (step, StepShape),
}
"""Name → the process, and the struct of its shape."""


def arrivals(kind: str, rate_per_s: float, seconds: float, rng: Generator, **shape: float) -> Times:
    """Draw the arrivals of a named process."""
    check_load(rate_per_s, seconds)
    known = read_shape(kind, shape)
    return ARRIVALS[kind][0](rate_per_s, seconds, rng, known)


def read_shape(kind: str, shape: Mapping[str, float]) -> Struct:
    """Read the shape of a named process."""
    if kind not in ARRIVALS:
        raise UnknownNameError("arrival process", kind, [*ARRIVALS, "or the path of a trace file"])
    return read_section(dict(shape), ARRIVALS[kind][1], f"arrival process '{kind}'")


def check_load(rate_per_s: float, seconds: float) -> None:
    """Refuse a rate or a length that is not above 0, and more requests than a run can hold."""
    if not rate_per_s > 0:
        raise ConfigError(f"rate_per_s is {rate_per_s:g}; a load needs a rate above 0 requests per second")
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds:g}; a run needs a length above 0 seconds")
    if not rate_per_s * seconds <= MOST_REQUESTS:
        raise ConfigError(
            f"{rate_per_s:g} requests per second for {seconds:g} s are more than {MOST_REQUESTS:,.0f}; "
            "lower the rate or shorten the run"
        )
