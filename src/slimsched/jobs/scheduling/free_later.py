"""How many GPUs of a machine will be free when, by the time limits of those that run and those planned."""

from bisect import bisect_left
from collections.abc import Iterable
from math import inf


class FreeLater:
    """A step function of time: `free[i]` GPUs from `times_s[i]` until the next time."""

    def __init__(self, now_s: float, free: int, ends: Iterable[tuple[float, int]]) -> None:
        """`ends` are the times when running jobs must end, and their GPUs; one past its limit ends now."""
        self.times_s = [now_s]
        self.free = [free]
        for end_s, gpus in sorted(ends):
            if end_s == inf:
                break
            at_s = max(end_s, now_s)
            if at_s > self.times_s[-1]:
                self.times_s.append(at_s)
                self.free.append(self.free[-1])
            self.free[-1] += gpus

    def earliest_s(self, gpus: int, length_s: float, *, not_now: bool = False) -> float:
        """Return the first time from which on `gpus` GPUs are free for `length_s`; inf if there is none."""
        start = 1 if not_now else 0
        for i in range(start, len(self.free)):
            free = self.free[i]
            if i > start and self.times_s[i] >= self.times_s[start] + length_s:
                break
            if free < gpus:
                start = i + 1
        return self.times_s[start] if start < len(self.times_s) else inf

    def take(self, gpus: int, start_s: float, length_s: float) -> None:
        """Plan a job."""
        if start_s == inf:
            return
        first, last = self._cut(start_s), self._cut(start_s + length_s)
        for i in range(first, last):
            self.free[i] -= gpus

    def _cut(self, at_s: float) -> int:
        """Return the step that begins at this time, made if there is none."""
        i = bisect_left(self.times_s, at_s)
        if i < len(self.times_s) and self.times_s[i] != at_s:
            self.times_s.insert(i, at_s)
            self.free.insert(i, self.free[i - 1])
        elif i == len(self.times_s) and at_s < inf:
            self.times_s.append(at_s)
            self.free.append(self.free[-1])
        return i
