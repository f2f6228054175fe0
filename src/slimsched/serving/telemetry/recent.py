"""Recent figures: over the last few seconds of a run, kept as running sums so that reading them is cheap."""

from collections import deque
from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request, alike
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.telemetry.stage import Stages

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
        self._answers, self._on_time, self._worth = RecentSum(), RecentSum(), RecentSum()
        self._latency_s, self._latency_sum_s = RecentSpread(), RecentSum()
        self._ran: deque[tuple[float, int, int, int, int]] = deque()
        self.ran_by: NDArray[np.int64] = np.zeros((servers, len(stages), len(stages.names)), dtype=np.int64)
        """Examples run, by server, stage and name of the choice."""

    def grow(self, models: Sequence[ServedModel], stages: Stages) -> None:
        """Know further models, which stand behind those that were there."""
        self._models, self._stages = models, stages
        before, kept = self.ran_by, self.ran_by.shape
        self.ran_by = np.zeros((kept[0], len(stages), len(stages.names)), dtype=np.int64)
        self.ran_by[:, : kept[1], : kept[2]] = before

    def arrived(self, now_s: float, count: int) -> None:
        """Count requests that arrived."""
        self._arrivals.add(now_s, count)

    def answered(self, now_s: float, requests: tuple[Request, ...]) -> None:
        """Count requests that were answered."""
        for request, count in alike(requests):
            self._answers.add(now_s, count)
            self._on_time.add(now_s, count * (now_s <= request.deadline_s))
            accuracy = self._models[request.model].expected_accuracy(request.path, request.trail)
            self._worth.add(now_s, count * accuracy)
            latency_s = now_s - request.arrival_s
            self._latency_sum_s.add(now_s, count * latency_s)
            self._latency_s.add(now_s, latency_s, count)

    def dropped(self, now_s: float, count: int) -> None:
        """Count requests that were dropped."""
        self._drops.add(now_s, count)

    def ran(self, now_s: float, event: SegmentFinished) -> None:
        """Count a batch that a server has run."""
        self._energy_j.add(now_s, event.energy_j)
        server, key, examples, stages = event.server, event.blocks[0].key, event.examples, self._stages
        for segment, choice in enumerate((event.choice, *event.ahead), start=key.segment):
            stage, name = stages.stage(key.model, segment), stages.name(key.model, segment, choice)
            self._ran.append((now_s, server, stage, name, examples))
            self.ran_by[server, stage, name] += examples

    def span_s(self, now_s: float) -> float:
        """Return how far back the figures reach: less than the window at the start of a run."""
        return max(1e-9, min(self._window_s, now_s))

    def forget(self, now_s: float) -> None:
        """Forget everything older than the window."""
        old_s = now_s - self._window_s
        for kept in (self._arrivals, self._drops, self._energy_j, self._answers, self._on_time, self._worth):
            kept.forget(old_s)
        self._latency_sum_s.forget(old_s)
        self._latency_s.forget(old_s)
        while self._ran and self._ran[0][0] < old_s:
            _, server, stage, name, size = self._ran.popleft()
            self.ran_by[server, stage, name] -= size

    def arrival_per_s(self, now_s: float) -> float:
        """Requests that arrived, per second."""
        return self._arrivals.value / self.span_s(now_s)

    def goodput_per_s(self, now_s: float) -> float:
        """Answers in time, per second."""
        return self._on_time.value / self.span_s(now_s)

    def latency_mean_s(self) -> float | None:
        """Mean latency."""
        return self._latency_sum_s.value / self._answers.value if self._answers.value else None

    def latency_percentiles_s(self) -> tuple[float | None, ...]:
        """Percentiles 50, 95 and 99 of latency."""
        return self._latency_s.percentiles(50, 95, 99)

    def slo(self) -> float | None:
        """Share of answered or dropped requests that were answered in time."""
        left = self._answers.value + self._drops.value
        return self._on_time.value / left if left else None

    def accuracy(self) -> float | None:
        """Mean accuracy of the answered plans, by the quality table."""
        return self._worth.value / self._answers.value if self._answers.value else None

    def served_share(self) -> float:
        """Share of requests that were answered; requests in a growing queue count as unserved."""
        most = max(self._answers.value + self._drops.value, self._arrivals.value)
        return self._answers.value / most if most else 0.0

    def energy_j(self) -> float | None:
        """Joules above idle, per answer."""
        return self._energy_j.value / self._answers.value if self._answers.value else None
