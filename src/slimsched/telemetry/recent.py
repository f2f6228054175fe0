"""Recent: figures over the last few seconds of a run."""

from collections import deque

import numpy as np
from msgspec import Struct

from slimsched.domain.accuracy import AccuracyTable
from slimsched.domain.batch import Batch
from slimsched.domain.request import Request
from slimsched.domain.width import SEGMENTS, WIDTHS

_PLACE = {width: place for place, width in enumerate(WIDTHS)}


class _Answer(Struct, frozen=True):
    at_s: float
    latency_s: float
    on_time: bool
    accuracy: float


class _Ran(Struct, frozen=True):
    at_s: float
    server: int
    segment: int
    width: int
    images: int


class Recent:
    """Remembers what happened within `window_s` and forgets it afterwards."""

    def __init__(self, accuracy: AccuracyTable, window_s: float) -> None:
        self._accuracy, self._window_s = accuracy, window_s
        self._arrivals: deque[tuple[float, int]] = deque()
        self._answers: deque[_Answer] = deque()
        self._drops: deque[tuple[float, int]] = deque()
        self._energy: deque[tuple[float, float]] = deque()
        self._ran: deque[_Ran] = deque()

    def arrived(self, now_s: float, count: int) -> None:
        """Requests came in."""
        self._arrivals.append((now_s, count))

    def answered(self, now_s: float, requests: tuple[Request, ...]) -> None:
        """Requests were answered."""
        for request in requests:
            worth = self._accuracy.accuracy(request.widths)
            on_time = now_s <= request.deadline_s
            self._answers.append(_Answer(now_s, now_s - request.arrival_s, on_time, worth))

    def dropped(self, now_s: float, count: int) -> None:
        """Requests were given up."""
        self._drops.append((now_s, count))

    def spent(self, now_s: float, energy_j: float) -> None:
        """A batch drew this much above idle."""
        self._energy.append((now_s, energy_j))

    def ran(self, now_s: float, server: int, batch: Batch) -> None:
        """A server was given a batch to run."""
        self._ran.append(_Ran(now_s, server, batch.key.segment, _PLACE[batch.key.width], batch.size))

    def span_s(self, now_s: float) -> float:
        """How long the figures reach back: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def forget(self, now_s: float) -> None:
        """Drop what is older than the window."""
        old_s = now_s - self._window_s
        for pairs in (self._arrivals, self._drops, self._energy):
            while pairs and pairs[0][0] < old_s:
                pairs.popleft()
        for entries in (self._answers, self._ran):
            while entries and entries[0].at_s < old_s:
                entries.popleft()

    def arrival_per_s(self, now_s: float) -> float:
        """Requests that came, a second."""
        return sum(count for _, count in self._arrivals) / self.span_s(now_s)

    def goodput_per_s(self, now_s: float) -> float:
        """Answers given in time, a second."""
        return sum(answer.on_time for answer in self._answers) / self.span_s(now_s)

    def latency_s(self) -> tuple[float | None, float | None, float | None]:
        """Percentiles 50, 95 and 99."""
        if not self._answers:
            return None, None, None
        found = np.percentile([answer.latency_s for answer in self._answers], (50, 95, 99))
        return float(found[0]), float(found[1]), float(found[2])

    def slo(self) -> float | None:
        """Share of requests that left the system answered in time."""
        left = len(self._answers) + sum(count for _, count in self._drops)
        return sum(answer.on_time for answer in self._answers) / left if left else None

    def accuracy(self) -> float | None:
        """Mean table accuracy of the widths answered."""
        if not self._answers:
            return None
        return sum(answer.accuracy for answer in self._answers) / len(self._answers)

    def served_share(self) -> float:
        """Answered over all that came or left, whichever are more: a growing queue counts as unserved."""
        left = len(self._answers) + sum(count for _, count in self._drops)
        most = max(left, sum(count for _, count in self._arrivals))
        return len(self._answers) / most if most else 0.0

    def energy_j(self) -> float | None:
        """Joules above idle, an answer."""
        return sum(energy for _, energy in self._energy) / len(self._answers) if self._answers else None

    def finished_per_s(self, now_s: float) -> tuple[float, ...]:
        """Images a second given to each segment."""
        counts = [0] * SEGMENTS
        for ran in self._ran:
            counts[ran.segment] += ran.images
        return tuple(count / self.span_s(now_s) for count in counts)

    def images_by_width(self, servers: int) -> list[list[int]]:
        """Images run, by server and width."""
        counts = [[0] * len(WIDTHS) for _ in range(servers)]
        for ran in self._ran:
            counts[ran.server][ran.width] += ran.images
        return counts
