"""SMDP batching: when a free instance waits for a larger batch, key by key.

Each key is treated as if it had its instance and the device to itself, with arrivals at random at the rate
that the server measures. `batch_queue.py` says what is best then. Two limits keep wrong guesses harmless: a
batch never waits past the time at which its first deadline would be missed, nor longer after the last
arrival than `PATIENCE` mean gaps between arrivals.
"""

from math import exp, log, log1p

from slimsched.kernel.wake import WakeAt
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.profile import Profile
from slimsched.serving.scheduling.batch_queue import BatchQueue, Sizes

WINDOW_S = 1.0
"""The time over which arrivals are counted; older ones fade."""

STEP = 0.2
"""Rates are told apart in steps of about a fifth. Each step of a key takes some milliseconds, once."""

PATIENCE = 4.0
"""Mean gaps between arrivals that a batch waits for the next one; a longer gap is one in fifty."""

FULL = 0.98
"""At this share of what the key's best batch size serves, and above, a batch starts at once."""


class _Arrivals:
    """The arrivals of one key: a fading count, and when it began and last changed."""

    __slots__ = ("began_s", "count", "last_s")

    def __init__(self, now_s: float) -> None:
        self.count = 0.0
        self.began_s = self.last_s = now_s

    def note(self, examples: int, now_s: float) -> None:
        self.count = self.count * exp((self.last_s - now_s) / WINDOW_S) + examples
        self.last_s = now_s

    @property
    def rate_per_s(self) -> float:
        """The rate when the last arrived; a short past counts as what it is."""
        lasted_s = WINDOW_S * -(exp((self.began_s - self.last_s) / WINDOW_S) - 1.0)
        return self.count / max(lasted_s, 0.05 * WINDOW_S)


class SmdpBatching:
    """Knows the arrivals of each key of one server, and the best rule for each."""

    def __init__(self, joule_s: float) -> None:
        self._joule_s = joule_s
        self._arrivals: dict[Key, _Arrivals] = {}
        self._rules: dict[tuple[Key, int, int], Sizes | None] = {}
        self._rule: dict[Key, Sizes | None] = {}  # the rule asked last
        self._until_s = 0.0  # until when the first of the held batches waits
        self._woken_s = 0.0  # the wake-up that was asked for

    def arrived(self, key: Key, examples: int, now_s: float) -> None:
        """Count arrivals."""
        if key not in self._arrivals:
            self._arrivals[key] = _Arrivals(now_s)
        self._arrivals[key].note(examples, now_s)

    def holds(
        self, key: Key, waiting: int, limit: int, profile: Profile, latest_s: float, now_s: float
    ) -> bool:
        """Whether a key should wait for more; `latest_s` is when it must start."""
        arrivals = self._arrivals[key]
        rate_per_s = arrivals.rate_per_s
        rule = self._rule[key] = self._best(key, limit, rate_per_s, profile)
        if rule is None or waiting >= len(rule) or rule[waiting]:
            return False
        until_s = min(latest_s, arrivals.last_s + PATIENCE / rate_per_s)
        if now_s >= until_s:
            return False
        self._until_s = min(self._until_s, until_s) if self._until_s > now_s else until_s
        return True

    def size(self, key: Key, waiting: int, limit: int) -> int:
        """Return the size of a batch that starts now; what held it may have run out of patience."""
        rule = self._rule.get(key)
        if rule is None:
            return limit
        best = int(rule[min(waiting, len(rule) - 1)])
        return min(limit, best or limit)

    def wake(self, now_s: float) -> list[WakeAt]:
        """Ask to be woken when the first of the held batches has waited long enough."""
        if self._until_s <= now_s or now_s < self._woken_s <= self._until_s:
            return []
        self._woken_s = self._until_s
        return [WakeAt(at_s=self._until_s)]

    def _best(self, key: Key, limit: int, rate_per_s: float, profile: Profile) -> Sizes | None:
        """Return the best rule at about this rate; None where the key needs every batch at once."""
        step = round(log(rate_per_s) / log1p(STEP))
        known = (key, limit, step)
        if known not in self._rules:
            sizes = range(1, limit + 1)
            run_s = [profile.latency_s(key, size) for size in sizes]
            energy_j = [profile.energy_j(key, size) for size in sizes]
            rate = (1.0 + STEP) ** step
            full = rate >= FULL * max(size / one for size, one in zip(sizes, run_s, strict=True))
            queue = None if full else BatchQueue(rate, run_s, energy_j, self._joule_s, states=4 * limit)
            self._rules[known] = None if queue is None else queue.best()
        return self._rules[known]
