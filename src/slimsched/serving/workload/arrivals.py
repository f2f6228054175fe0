"""Arrival processes: when requests arrive. Each is a pure function of rate, length and random generator.

Arrivals can also follow a recorded trace, or a process fitted to one.
"""

import csv
import io
import tarfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.core.config import (
    LARGEST_BYTES,
    Amount,
    ConfigError,
    DataError,
    Factor,
    PhaseSeconds,
    PositiveSeconds,
    Rate,
    Share,
    UnknownNameError,
    read_packed_text,
    read_seconds,
    read_section,
)

SHIPPED = Path(__file__).parent / "azure_llm_2023_conv.json"
"""A process fitted to one hour of requests to a conversation service; the file names the command."""


class ModulatedPoisson(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Markov-modulated Poisson process: arrivals whose rate jumps between a few states.

    For each state: `rates` is its rate relative to the mean, `lasts_s` how long it lasts on average, and
    `jumps` the probability of each next state (rows sum to 1). Times come from the trace it was fitted to,
    whose mean rate is `rate_per_s`. At another rate, time runs faster or slower in proportion, as when a real
    trace is rescaled.
    """

    source: str
    command: str
    rate_per_s: Rate
    rates: tuple[Amount, ...]
    lasts_s: tuple[PositiveSeconds, ...]
    jumps: tuple[tuple[Share, ...], ...]

    def share_of_time(self) -> NDArray[np.float64]:
        """Return the share of time spent in each state in the long run."""
        count = len(self.rates)
        flow = np.array(self.jumps) / np.array(self.lasts_s)[:, None]
        flow -= np.diag(1.0 / np.array(self.lasts_s))
        system = np.vstack([flow.T, np.ones(count)])
        shares: NDArray[np.float64] = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)[0]
        return shares

    def times_s(self, rate_per_s: float, seconds: float, rng: Generator) -> NDArray[np.float64]:
        """Draw arrivals with this mean rate."""
        pace = self.rate_per_s / rate_per_s
        state = int(rng.choice(len(self.rates), p=self.share_of_time()))
        pieces, now_s = [np.empty(0)], 0.0
        while now_s < seconds:
            length_s = min(rng.exponential(pace * self.lasts_s[state]), seconds - now_s)
            count = rng.poisson(rate_per_s * self.rates[state] * length_s)
            pieces.append(now_s + np.sort(rng.uniform(0.0, length_s, count)))
            now_s += length_s
            state = int(rng.choice(len(self.rates), p=self.jumps[state]))
        return np.concatenate(pieces)


@cache
def shipped_process() -> ModulatedPoisson:
    """Return the process that ships with the package."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=ModulatedPoisson)


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
    """Draw from a Markov-modulated Poisson process that was fitted to a real trace."""
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


ACCEPTED = (
    "a CSV (plain, .gz, .bz2) with a column TIMESTAMP or arrival_s (one request per row) or count "
    "(requests per second, one second per row) or columns minute_1, minute_2, … (requests per minute), "
    "or a text of whole counts per second (plain or inside a tar archive)"
)

SHORTEST_S = 1e-6
"""A trace must cover more time than this, so that it has a rate."""
LARGEST_COUNT = 1e12


class RequestTrace(Struct, frozen=True, kw_only=True):
    """Real arrivals: either the times of single requests or the counts in intervals of `interval_s`."""

    name: str
    times_s: NDArray[np.float64] | None = None
    counts: NDArray[np.float64] | None = None
    interval_s: float = 1.0
    silence_s: float = 0.0
    """Time without any requests that was cut out, because the recorder was off."""

    @property
    def requests(self) -> int:
        """How many requests the trace has."""
        if self.times_s is not None:
            return len(self.times_s)
        assert self.counts is not None
        return round(float(np.round(self.counts).sum()))

    @property
    def seconds(self) -> float:
        """How long the trace is; the last of single requests ends it."""
        if self.times_s is not None:
            return float(np.nextafter(self.times_s[-1], np.inf))
        assert self.counts is not None
        return len(self.counts) * self.interval_s

    @property
    def rate_per_s(self) -> float:
        """The mean rate."""
        return self.requests / self.seconds

    def recorded(self, seconds: float, rng: Generator) -> Times:
        """Return the arrivals of the first `seconds` as they were recorded.

        Counts come exactly as many as they are, at random times within each interval.
        """
        if self.times_s is not None:
            return self.times_s[self.times_s < seconds]
        assert self.counts is not None
        whole = self.counts[: int(np.ceil(seconds / self.interval_s))]
        each = np.round(whole).astype(np.int64)
        return _spread(each, self.interval_s, seconds, rng)

    def rescaled(self, rate_per_s: float, seconds: float, rng: Generator) -> Times:
        """Return arrivals over `seconds` at a mean rate, from a random start in the trace.

        Request times are stretched to the rate, so gaps keep their pattern; a trace that is too short starts
        again. Counts are taken from a window of that length and scaled to the rate; arrivals are uniform
        within each interval.
        """
        check_load(rate_per_s, seconds)
        if self.times_s is not None:
            gaps_s = np.diff(self.times_s) * ((len(self.times_s) - 1) / self.times_s[-1] / rate_per_s)
            needed = int(np.ceil(rate_per_s * seconds * 1.5)) + len(gaps_s)
            first = int(rng.integers(len(gaps_s)))
            out = np.cumsum(np.resize(np.roll(gaps_s, -first), needed))
            return out[out < seconds]
        assert self.counts is not None
        length = int(np.ceil(seconds / self.interval_s))
        first = int(rng.integers(max(1, len(self.counts) - length + 1)))
        window = np.resize(self.counts[first : first + length], length)
        if window.sum() <= 0:
            window = np.ones(length)
        window = window * (rate_per_s * self.interval_s * length / window.sum())
        return _spread(rng.poisson(window), self.interval_s, seconds, rng)


def read_request_trace(path: Path) -> RequestTrace:
    """Read a trace in any of the accepted formats."""
    if not path.is_file():
        raise DataError(f"no arrival trace at {path}; give the path of {ACCEPTED}")
    try:
        text = _text(path)
        if not text[:1000].upper().isupper():  # no letters at the top: counts without a header
            return _of_counts(path.name, _bare_counts(text), 1.0)
        rows = csv.reader(io.StringIO(text))
        header = next(rows, [])
        names = [name.strip().lower() for name in header]
        for name, read in (("timestamp", read_seconds), ("arrival_s", float)):
            if name in names:
                column = names.index(name)
                return _of_times(path.name, [read(row[column]) for row in rows if row])
        if "count" in names:
            column = names.index("count")
            return _of_counts(path.name, [float(row[column]) for row in rows if row], 1.0)
        minutes = [i for i, name in enumerate(names) if name.startswith("minute_")]
        if minutes:
            table = [[float(row[i] or 0) for i in minutes] for row in rows if row]
            return _of_counts(path.name, [sum(column) for column in zip(*table, strict=True)], 60.0)
        raise ValueError(f"no known column among {', '.join(names[:6])}")
    except (ValueError, IndexError, OverflowError, OSError, EOFError, csv.Error, tarfile.TarError) as error:
        raise DataError(f"{path.name} is not an arrival trace ({error}); give {ACCEPTED}") from None


def _bare_counts(text: str) -> list[float]:
    """Read counts without a header; refuse what looks like times, which mean something else."""
    numbers = [float(word) for word in text.replace(",", " ").split()]
    rises = len(numbers) > 2 and numbers[0] < numbers[-1] and numbers == sorted(numbers)
    if rises or any(number != int(number) for number in numbers):
        raise ValueError(
            "numbers without a header that look like times of requests; write the name of the column, "
            "arrival_s or count, into the first line"
        )
    return numbers


def _text(path: Path) -> str:
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.size <= LARGEST_BYTES and (stream := archive.extractfile(member)) is not None:
                    return stream.read().decode()
        raise ValueError("the archive is empty")
    return read_packed_text(path)


def _of_times(name: str, times_s: list[float]) -> RequestTrace:
    times = np.sort(np.array(times_s))
    if not np.isfinite(times).all():
        raise ValueError("some arrival times are not finite")
    if len(times) < 2 or times[-1] - times[0] < SHORTEST_S:
        raise ValueError("fewer than two different arrival times")
    return RequestTrace(name=name, times_s=times - times[0])


def _of_counts(name: str, counts: list[float], interval_s: float) -> RequestTrace:
    """Make a trace of counts; drop gaps of 20 minutes or more, in which the recorder was off."""
    values = np.array(counts)
    if not len(values) or not ((values >= 0) & (values <= LARGEST_COUNT)).all() or values.sum() < 1e-9:
        raise ValueError(f"counts must be from 0 to {LARGEST_COUNT:g}, and some above 0")
    kept = values[~_is_silence(values, round(1200 / interval_s))]
    silence_s = (len(values) - len(kept)) * interval_s
    return RequestTrace(name=name, counts=kept, interval_s=interval_s, silence_s=silence_s)


def _is_silence(values: NDArray[np.float64], longest: int) -> NDArray[np.bool_]:
    """Mark the zeros that come at least `longest` in a row."""
    edges = np.flatnonzero(np.diff(values == 0.0, prepend=False, append=False))
    marks = np.zeros(len(values), dtype=bool)
    for start, end in edges.reshape(-1, 2).tolist():
        marks[start:end] = end - start >= longest
    return marks


def _spread(counts: NDArray[np.int64], interval_s: float, seconds: float, rng: Generator) -> Times:
    """Return as many arrivals as each interval has, at random times within it."""
    starts = np.repeat(np.arange(len(counts)) * interval_s, counts)
    out = np.sort(starts + rng.uniform(0.0, interval_s, len(starts)))
    return out[out < seconds]
