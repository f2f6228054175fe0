"""A simulated device: runs several batches at once by its profile, each slowed by the others."""

from collections import deque
from math import inf

from slimsched.serving.domain.profile import ALONE, NoiseSource, Profile, ServiceCost
from slimsched.serving.domain.request import Batch


class _Work:
    """A batch on the device, and how much of it is left."""

    __slots__ = ("batch", "energy_j", "latencies_s", "left", "rate_per_s", "started_s")

    def __init__(
        self, batch: Batch, profile: Profile, cost: ServiceCost, noise: NoiseSource | None, now_s: float
    ) -> None:
        self.batch = batch
        self.latencies_s = profile.latencies_s(batch.key, batch.size)
        if cost is not ALONE:
            self.latencies_s = [cost.latency_s(alone_s, now_s) for alone_s in self.latencies_s]
        if noise is not None:
            factor = noise.factor(now_s)
            self.latencies_s = [factor * usual_s for usual_s in self.latencies_s]
        self.energy_j = profile.energy_j(batch.key, batch.size)
        self.left = 1.0
        self.rate_per_s = 0.0
        self.started_s = now_s


class SimulatedDevice:
    """Processor sharing by profile: while c batches run, each proceeds at 1 / latency(key, size, c).

    At most as many batches run at once as were profiled together; others wait in order of arrival.
    """

    def __init__(self, profile: Profile, cost: ServiceCost = ALONE, noise: NoiseSource | None = None) -> None:
        self.profile = profile
        self.slowdown = 1.0
        self._cost, self._noise = cost, noise
        self.version = 0  # changes whenever the time of the next finish may change
        self._running: list[_Work] = []
        self._waiting: deque[_Work] = deque()
        self._first: _Work | None = None
        self._first_s = inf
        self._since_s = 0.0
        self._active_w = 0.0
        self._sampled_s = 0.0
        self._busy_s = 0.0
        self._active_j = 0.0

    def start(self, batch: Batch, now_s: float) -> None:
        """Start a batch next to those already running."""
        self._pass_time(now_s)
        work = _Work(batch, self.profile, self._cost, self._noise, now_s)
        if len(self._running) < self.profile.top_concurrency:
            self._running.append(work)
            self._share()
        else:
            self._waiting.append(work)

    def next_finish_s(self) -> float | None:
        """Return when the next batch will be done if nothing else starts; None if nothing runs."""
        return None if self._first is None else self._first_s

    def finish(self, now_s: float) -> tuple[Batch, float, float]:
        """Remove the finished batch; return it, the time it took, and the energy it drew above idle."""
        done = self._first
        assert done is not None
        self._pass_time(now_s)
        self._running.remove(done)
        if self._waiting:
            self._waiting[0].started_s = now_s
            self._running.append(self._waiting.popleft())
        self._share()
        return done.batch, now_s - done.started_s, done.energy_j

    def slow(self, factor: float, now_s: float) -> None:
        """From now on, let everything take `factor` times as long as the profile says."""
        self._pass_time(now_s)
        self.slowdown = factor
        self._share()

    def sample(self, now_s: float) -> tuple[float, float]:
        """Return utilization and mean power since the last sample."""
        self._pass_time(now_s)
        period_s = now_s - self._sampled_s
        if period_s <= 0.0:
            return 0.0, self.profile.idle_w
        reading = self._busy_s / period_s, self.profile.idle_w + self._active_j / period_s
        self._sampled_s, self._busy_s, self._active_j = now_s, 0.0, 0.0
        return reading

    def _pass_time(self, now_s: float) -> None:
        """Update the running batches to the current time."""
        passed_s = now_s - self._since_s
        self._since_s = now_s
        if passed_s > 0.0 and self._running:
            self._busy_s += passed_s
            self._active_j += passed_s * self._active_w
            for work in self._running:
                work.left -= passed_s * work.rate_per_s

    def _share(self) -> None:
        """Set the pace of all running batches, and find the one that will finish first."""
        self.version += 1
        self._first, least_s, active_w = None, inf, 0.0
        pace, column = 1.0 / self.slowdown, len(self._running) - 1
        for work in self._running:
            work.rate_per_s = rate = pace / work.latencies_s[column]
            active_w += work.energy_j * rate
            left_s = work.left / rate
            if left_s < least_s:
                self._first, least_s = work, left_s
        self._first_s = self._since_s + max(0.0, least_s)
        self._active_w = active_w
