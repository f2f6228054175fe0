"""The Prometheus text format (0.0.4): writes counters, gauges and histograms as lines."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Histogram:
    """A histogram with fixed buckets; observing a value takes one bisection."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def observe_all(self, values: NDArray[np.float64], times: int = 1) -> None:
        """Count many values, each once or several times."""
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [own + times * more for own, more in zip(self._counts, counts.tolist(), strict=True)]
        self._sum += times * float(values.sum())

    def take(self) -> tuple[list[int], float]:
        """Return the count of each bucket and the sum, and begin again at zero."""
        taken = self._counts, self._sum
        self._counts, self._sum = [0] * len(self._counts), 0.0
        return taken

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add what another histogram with the same buckets has counted."""
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self._sum += total

    def lines(self, name: str, labels: Labels) -> list[str]:
        """Return the lines of the cumulative buckets, the sum and the count."""
        buckets, below = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            buckets.append(sample(f"{name}_bucket", below, {**labels, "le": edge}))
        return [*buckets, sample(f"{name}_sum", self._sum, labels), sample(f"{name}_count", below, labels)]


def family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    """Return the lines of a counter or gauge. The name of a counter ends in _total."""
    return [*_head(name, kind, about), *[sample(name, value, labels) for labels, value in samples]]


def histogram(name: str, about: str, series: Iterable[tuple[Labels, Histogram]]) -> list[str]:
    """Return the lines of a histogram, with one set of buckets for each set of labels."""
    lines = _head(name, "histogram", about)
    for labels, one in series:
        lines += one.lines(name, labels)
    return lines


def sample(name: str, value: float, labels: Labels) -> str:
    """Return the line of one sample."""
    inside = ",".join(f'{key}="{_escape(word)}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{float(value):.9g}"


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
