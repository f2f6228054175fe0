"""Traces of real arrivals: request times or counts per interval, as recorded or rescaled to a mean rate."""

import csv
import io
import tarfile
from datetime import datetime
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.kernel.errors import DataError
from slimsched.kernel.packed_text import LARGEST_BYTES, read_packed_text
from slimsched.serving.workload.arrivals import Times, check_load

ACCEPTED = (
    "a CSV (plain, .gz, .bz2) with a column TIMESTAMP or arrival_s (one request per row) or count "
    "(requests per second, one second per row) or columns minute_1, minute_2, … (requests per minute), "
    "or a text of whole counts per second (plain or inside a tar archive)"
)

SHORTEST_S = 1e-6
"""A trace must cover more time than this, so that it has a rate."""
LARGEST_COUNT = 1e12


class RequestTrace(Struct, frozen=True, kw_only=True):
    """A trace of either the times of single requests or the counts in intervals of `interval_s`."""

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
        starts = np.repeat(np.arange(len(each)) * self.interval_s, each)
        out = np.sort(starts + rng.uniform(0.0, self.interval_s, len(starts)))
        return out[out < seconds]

    def rescaled(self, rate_per_s: float, seconds: float, rng: Generator) -> Times:
        """Return arrivals over `seconds` at a mean rate, from a random start in the trace.

        Request times are stretched to the rate, so gaps keep their pattern; a trace that is too short starts
        again. Counts are taken from a window of that length and scaled to the rate; arrivals are uniform
        within each interval.
        """
        check_load(rate_per_s, seconds)
        if self.times_s is not None:
            return _stretch(self.times_s, rate_per_s, seconds, rng)
        assert self.counts is not None
        return _scale(self.counts, self.interval_s, rate_per_s, seconds, rng)

    def counts_in(self, bin_s: float) -> NDArray[np.float64]:
        """Return the requests in each bin; a trace of counts keeps its own intervals."""
        if self.times_s is not None:
            edges = np.arange(0.0, self.times_s[-1] + bin_s, bin_s)
            return np.histogram(self.times_s, edges)[0].astype(np.float64)
        assert self.counts is not None
        return self.counts


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
        if "timestamp" in names:
            column = names.index("timestamp")
            return _of_times(path.name, [_seconds(row[column]) for row in rows if row])
        if "arrival_s" in names:
            column = names.index("arrival_s")
            return _of_times(path.name, [float(row[column]) for row in rows if row])
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


def _seconds(text: str) -> float:
    """Read a number of seconds, or a date and time with any number of digits after the second."""
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.strip().partition(".")
        return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


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
    kept = _without_silence(values, round(1200 / interval_s))
    silence_s = (len(values) - len(kept)) * interval_s
    return RequestTrace(name=name, counts=kept, interval_s=interval_s, silence_s=silence_s)


def _without_silence(values: NDArray[np.float64], longest: int) -> NDArray[np.float64]:
    keep = np.ones(len(values), dtype=bool)
    start: int | None = None
    for index, value in enumerate([*values.tolist(), 1.0]):
        if value == 0.0:
            start = index if start is None else start
        elif start is not None:
            if index - start >= longest:
                keep[start:index] = False
            start = None
    return values[keep]


def _stretch(times_s: NDArray[np.float64], rate_per_s: float, seconds: float, rng: Generator) -> Times:
    own_rate = (len(times_s) - 1) / times_s[-1]
    gaps_s = np.diff(times_s) * (own_rate / rate_per_s)
    needed = int(np.ceil(rate_per_s * seconds * 1.5)) + len(gaps_s)
    first = int(rng.integers(len(gaps_s)))
    out = np.cumsum(np.resize(np.roll(gaps_s, -first), needed))
    return out[out < seconds]


def _scale(
    counts: NDArray[np.float64], interval_s: float, rate_per_s: float, seconds: float, rng: Generator
) -> Times:
    length = int(np.ceil(seconds / interval_s))
    first = int(rng.integers(max(1, len(counts) - length + 1)))
    window = np.resize(counts[first : first + length], length)
    if window.sum() <= 0:
        window = np.ones(length)
    window = window * (rate_per_s * interval_s * length / window.sum())
    each = rng.poisson(window)
    starts = np.repeat(np.arange(length) * interval_s, each)
    out = np.sort(starts + rng.uniform(0.0, interval_s, len(starts)))
    return out[out < seconds]
