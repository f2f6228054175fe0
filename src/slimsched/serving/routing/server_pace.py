"""The pace of a server: how fast it works compared with its profile, measured on what it has done.

A server with more work than a batch shows how fast it is when all its batches are full. One with less work
runs small batches, which cost more per example; it only shows whether these take as long as they should.
"""

from math import exp

MEMORY_S = 1.0
"""Work from this long ago counts about a third; time in which the server had nothing to do does not pass."""

PRIOR_S = 0.2
"""How much work at the profile's own pace is assumed at the start."""


class ServerPace:
    """Profiled time of the work done, over the time in which the server had work."""

    def __init__(self) -> None:
        self._done_s = self._passed_s = PRIOR_S
        self._since_s: float | None = None

    @property
    def value(self) -> float:
        """The pace: 1 as profiled, 0.5 if everything takes twice as long."""
        return self._done_s / self._passed_s

    def began(self, now_s: float) -> None:
        """Note that the server has work now."""
        if self._since_s is None:
            self._since_s = now_s

    def worked(self, full_s: float, now_s: float) -> None:
        """Note work done that takes `full_s` in full batches, by a server that has much more."""
        if self._since_s is None:
            return
        passed_s = max(1e-6, now_s - self._since_s)
        kept = exp(-passed_s / MEMORY_S)
        self._done_s = self._done_s * kept + full_s
        self._passed_s = self._passed_s * kept + passed_s
        self._since_s = now_s

    def worked_in_part(self, alone_s: float, now_s: float, *, is_idle: bool) -> None:
        """Note a batch that takes `alone_s` alone, by a server that has little or nothing else to do."""
        if self._since_s is not None:
            self.worked(min(alone_s, now_s - self._since_s), now_s)
        if is_idle:
            self._since_s = None

    def stopped(self) -> None:
        """Note that the server has no work any more, without having done it."""
        self._since_s = None
