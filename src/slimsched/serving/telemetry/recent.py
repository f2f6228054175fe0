"""Recent: figures over the last few seconds of a run, kept as running sums so that looking costs little."""

from array import array
from collections import deque

import numpy as np
from numpy.typing import NDArray

from slimsched.models.accuracy import AccuracyTable
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.routing.events import SegmentFinished

_PLACE = {width: place for place, width in enumerate(WIDTHS)}


class RecentSum:
    """A sum over what happened lately."""

    __slots__ = ("_entries", "value")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self.value = 0.0

    def add(self, now_s: float, value: float) -> None:
        """It happened now."""
        self._entries.append((now_s, value))
        self.value += value

    def forget(self, old_s: float) -> None:
        """Take out what happened before."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            self.value -= entries.popleft()[1]
        if not entries:
            self.value = 0.0  # rounding does not pile up


class RecentValues:
    """The values themselves, one behind the other in memory, for percentiles."""

    __slots__ = ("_counts", "_gone", "_values")

    def __init__(self) -> None:
        self._values = array("d")
        self._counts: deque[tuple[float, int]] = deque()
        self._gone = 0  # of the front

    def add(self, now_s: float, values: list[float]) -> None:
        """They came now."""
        self._values.extend(values)
        self._counts.append((now_s, len(values)))

    def forget(self, old_s: float) -> None:
        """Take out what came before; memory is given back when half of it is gone."""
        counts = self._counts
        while counts and counts[0][0] < old_s:
            self._gone += counts.popleft()[1]
        if 2 * self._gone > len(self._values):
            del self._values[: self._gone]
            self._gone = 0

    def percentiles(self, *shares: float) -> tuple[float | None, ...]:
        """None for each while there are no values."""
        values = np.frombuffer(self._values, dtype=np.float64)[self._gone :]
        if not len(values):
            return (None,) * len(shares)
        return tuple(float(found) for found in np.percentile(values, shares))


class Recent:
    """Remembers what happened within `window_s` and forgets it afterwards."""

    def __init__(self, accuracy: AccuracyTable, window_s: float, servers: int) -> None:
        self._accuracy, self._window_s = accuracy, window_s
        self._arrivals, self._drops, self._energy_j = RecentSum(), RecentSum(), RecentSum()
        self._answers, self._on_time, self._worth = RecentSum(), RecentSum(), RecentSum()
        self._latency_s = RecentValues()
        self._ran: deque[tuple[float, int, int, int, int]] = deque()
        self.images: NDArray[np.int64] = np.zeros((servers, SEGMENTS, len(WIDTHS)), dtype=np.int64)
        """Images run, by server, segment and width."""

    def arrived(self, now_s: float, count: int) -> None:
        """Requests came in."""
        self._arrivals.add(now_s, count)

    def answered(self, now_s: float, requests: tuple[Request, ...]) -> None:
        """Requests were answered."""
        accuracy = self._accuracy.accuracy
        for request, count in alike(requests):
            self._answers.add(now_s, count)
            self._on_time.add(now_s, count * (now_s <= request.deadline_s))
            self._worth.add(now_s, count * accuracy(request.widths))
            self._latency_s.add(now_s, [now_s - request.arrival_s] * count)

    def dropped(self, now_s: float, count: int) -> None:
        """Requests were given up."""
        self._drops.add(now_s, count)

    def ran(self, now_s: float, event: SegmentFinished) -> None:
        """A server has run a batch."""
        self._energy_j.add(now_s, event.energy_j)
        server, first, images = event.server, event.blocks[0].key.segment, event.images
        for segment, width in enumerate((event.width, *event.ahead), start=first):
            place = _PLACE[width]
            self._ran.append((now_s, server, segment, place, images))
            self.images[server, segment, place] += images

    def span_s(self, now_s: float) -> float:
        """How long the figures reach back: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def forget(self, now_s: float) -> None:
        """Drop what is older than the window."""
        old_s = now_s - self._window_s
        for kept in (self._arrivals, self._drops, self._energy_j, self._answers, self._on_time, self._worth):
            kept.forget(old_s)
        self._latency_s.forget(old_s)
        while self._ran and self._ran[0][0] < old_s:
            _, server, segment, width, size = self._ran.popleft()
            self.images[server, segment, width] -= size

    def arrival_per_s(self, now_s: float) -> float:
        """Requests that came, a second."""
        return self._arrivals.value / self.span_s(now_s)

    def goodput_per_s(self, now_s: float) -> float:
        """Answers given in time, a second."""
        return self._on_time.value / self.span_s(now_s)

    def latency_s(self) -> tuple[float | None, ...]:
        """Percentiles 50, 95 and 99."""
        return self._latency_s.percentiles(50, 95, 99)

    def slo(self) -> float | None:
        """Share of requests that left the system answered in time."""
        left = self._answers.value + self._drops.value
        return self._on_time.value / left if left else None

    def accuracy(self) -> float | None:
        """Mean table accuracy of the widths answered."""
        return self._worth.value / self._answers.value if self._answers.value else None

    def served_share(self) -> float:
        """Answered over all that came or left, whichever are more: a growing queue counts as unserved."""
        most = max(self._answers.value + self._drops.value, self._arrivals.value)
        return self._answers.value / most if most else 0.0

    def energy_j(self) -> float | None:
        """Joules above idle, an answer."""
        return self._energy_j.value / self._answers.value if self._answers.value else None
