"""Recent figures: over the last few seconds of a run, kept as running sums so that reading them is cheap."""

from collections import Counter, deque
from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.telemetry.stage import Stages

Ran = tuple[int, int, int, Path]
"""What a batch has run: server, model, first segment, and the choice of each segment."""

LEAST, STEP, STEPS = 1e-5, 0.02, 1024
"""Values are counted in steps of this ratio from the least one on, up to 7,800."""


class RecentSum:
    """A sum over recent entries."""

    __slots__ = ("_entries", "value")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self.value = 0.0

    def add(self, now_s: float, value: float) -> None:
        """Add a value now."""
        self._entries.append((now_s, value))
        self.value += value

    def forget(self, old_s: float) -> None:
        """Remove entries older than `old_s`."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            self.value -= entries.popleft()[1]
        if not entries:
            self.value = 0.0  # so that rounding errors do not add up


class RecentAnswers:
    """Sums over recent answers: how many, how many in time, their worth and their latencies."""

    __slots__ = ("_entries", "count", "latency_s", "on_time", "worth")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int, int, float, float]] = deque()
        self._begin()

    def _begin(self) -> None:
        self.count = self.on_time = 0
        self.worth = self.latency_s = 0.0

    def add(self, now_s: float, count: int, on_time: int, accuracy: float, latency_s: float) -> None:
        """Add answers that are alike, each with this accuracy and latency."""
        worth, latency_s = count * accuracy, count * latency_s
        self._entries.append((now_s, count, on_time, worth, latency_s))
        self.count += count
        self.on_time += on_time
        self.worth += worth
        self.latency_s += latency_s

    def forget(self, old_s: float) -> None:
        """Remove entries older than `old_s`."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            _, count, on_time, worth, latency_s = entries.popleft()
            self.count -= count
            self.on_time -= on_time
            self.worth -= worth
            self.latency_s -= latency_s
        if not entries:
            self._begin()  # so that rounding errors do not add up


class RecentSpread:
    """The distribution of recent values, in steps of two per cent: its size does not grow with them."""

    __slots__ = ("_counts", "_entries")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(STEPS, dtype=np.int64)
        self._entries: deque[tuple[float, int, int]] = deque()

    def add(self, now_s: float, value: float, count: int) -> None:
        """Add a value several times now."""
        step = min(STEPS - 1, max(0, int(log(max(value, LEAST) / LEAST) / STEP)))
        self._entries.append((now_s, step, count))
        self._counts[step] += count

    def forget(self, old_s: float) -> None:
        """Forget values older than `old_s`."""
        entries = self._entries
        while entries and entries[0][0] < old_s:
            _, step, count = entries.popleft()
            self._counts[step] -= count

    def percentiles(self, *shares: float) -> tuple[float | None, ...]:
        """Return these percentiles, each within one per cent, or None while there are no values."""
        below = np.cumsum(self._counts)
        total = int(below[-1])
        if not total:
            return (None,) * len(shares)
        steps = np.searchsorted(below, [share / 100 * (total - 1) for share in shares], side="right")
        return tuple((LEAST * np.exp((steps + 0.5) * STEP)).tolist())


class Recent:
    """Figures over the last `window_s` seconds."""

    def __init__(self, models: Sequence[ServedModel], stages: Stages, window_s: float, servers: int) -> None:
        self._models, self._stages, self._window_s = models, stages, window_s
        self._arrivals, self._drops, self._energy_j = RecentSum(), RecentSum(), RecentSum()
        self._answers, self._latency_s = RecentAnswers(), RecentSpread()
        self._servers = servers
        self._ran: deque[tuple[float, Ran, int]] = deque()
        self._ran_by: Counter[Ran] = Counter()

    def grow(self, models: Sequence[ServedModel], stages: Stages) -> None:
        """Know further models, which stand behind those that were there."""
        self._models, self._stages = models, stages

    def arrived(self, now_s: float, count: int) -> None:
        """Count requests that arrived."""
        self._arrivals.add(now_s, count)

    def answered(self, now_s: float, requests: tuple[Request, ...]) -> None:
        """Count requests that were answered."""
        for request, count in alike(requests):
            accuracy = self._models[request.model].expected_accuracy(request.path, request.trail)
            latency_s = now_s - request.arrival_s
            self._answers.add(now_s, count, count * (now_s <= request.deadline_s), accuracy, latency_s)
            self._latency_s.add(now_s, latency_s, count)

    def dropped(self, now_s: float, count: int) -> None:
        """Count requests that were dropped."""
        self._drops.add(now_s, count)

    def ran(self, now_s: float, event: SegmentFinished) -> None:
        """Count a batch that a server has run."""
        self._energy_j.add(now_s, event.energy_j)
        key, examples = event.blocks[0].key, event.examples
        ran = event.server, key.model, key.segment, (event.choice, *event.ahead)
        self._ran.append((now_s, ran, examples))
        self._ran_by[ran] += examples

    def ran_by(self) -> NDArray[np.int64]:
        """Count examples that ran, by server, stage and name of the choice."""
        stages = self._stages
        counts = np.zeros((self._servers, len(stages), len(stages.names)), dtype=np.int64)
        for (server, model, first, choices), examples in self._ran_by.items():
            for segment, choice in enumerate(choices, start=first):
                place = server, stages.stage(model, segment), stages.name(model, segment, choice)
                counts[place] += examples
        return counts

    def span_s(self, now_s: float) -> float:
        """Return how far back the figures reach: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def forget(self, now_s: float) -> None:
        """Forget everything older than the window."""
        old_s = now_s - self._window_s
        for kept in (self._arrivals, self._drops, self._energy_j, self._answers, self._latency_s):
            kept.forget(old_s)
        while self._ran and self._ran[0][0] < old_s:
            _, ran, size = self._ran.popleft()
            self._ran_by[ran] -= size

    def arrival_per_s(self, now_s: float) -> float:
        """Requests that arrived, per second."""
        return self._arrivals.value / self.span_s(now_s)

    def goodput_per_s(self, now_s: float) -> float:
        """Answers in time, per second."""
        return self._answers.on_time / self.span_s(now_s)

    def latency_mean_s(self) -> float | None:
        """Mean latency."""
        return self._answers.latency_s / self._answers.count if self._answers.count else None

    def latency_percentiles_s(self) -> tuple[float | None, ...]:
        """Percentiles 50, 95 and 99 of latency."""
        return self._latency_s.percentiles(50, 95, 99)

    def slo(self) -> float | None:
        """Share of answered or dropped requests that were answered in time."""
        left = self._answers.count + self._drops.value
        return self._answers.on_time / left if left else None

    def accuracy(self) -> float | None:
        """Mean accuracy of the answered plans, by the quality table."""
        return self._answers.worth / self._answers.count if self._answers.count else None

    def served_share(self) -> float:
        """Share of requests that were answered; requests in a growing queue count as unserved."""
        most = max(self._answers.count + self._drops.value, self._arrivals.value)
        return self._answers.count / most if most else 0.0

    def energy_j(self) -> float | None:
        """Joules above idle, per answer."""
        return self._energy_j.value / self._answers.count if self._answers.count else None
