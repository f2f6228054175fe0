"""The recorder: keeps a frame at regular times, so that a run can be viewed afterwards."""

from collections.abc import Sequence

from msgspec import Struct

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.telemetry.frame import Frame
from slimsched.serving.telemetry.live_view import Bound, LiveView

FRAMES = 240
"""Number of frames per run: enough for a smooth slider."""


class Recorder:
    """An observer that keeps frames, by the times in the log."""

    def __init__(
        self,
        cluster: Cluster,
        router: str,
        *,
        seconds: float,
        bound: Bound | None = None,
        sure_bound: Bound | None = None,
    ) -> None:
        self._period_s = seconds / FRAMES
        self._view = LiveView(
            cluster, router, bound=bound, sure_bound=sure_bound, window_s=max(1.0, 4 * self._period_s)
        )
        self._next_s = self._period_s
        self.frames: list[Frame] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry, after keeping the frames that were due before it."""
        while now_s > self._next_s:
            self.frames.append(self._view.frame(self._next_s))
            self._next_s += self._period_s
        self._view.observe(now_s, machine, event, commands)
