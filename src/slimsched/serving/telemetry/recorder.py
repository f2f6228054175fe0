"""The recorder: keeps a frame at regular times, so that a run can be viewed afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slimsched.core.config import DataError
from slimsched.core.log import Log
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY_NAME, Cluster
from slimsched.serving.routing.autoscaler import LoadReported, Scale
from slimsched.serving.routing.commands import Command
from slimsched.serving.routing.events import Event
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
        begin_s: float = 0.0,
        bound: Bound | None = None,
        sure_bound: Bound | None = None,
    ) -> None:
        self._period_s = seconds / FRAMES
        self._view = LiveView(
            cluster, router, bound=bound, sure_bound=sure_bound, window_s=max(1.0, 4 * self._period_s)
        )
        self._next_s = begin_s + self._period_s
        self.frames: list[Frame] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry, after keeping the frames that were due before it."""
        while now_s > self._next_s:
            self.frames.append(self._view.frame(self._next_s))
            self._next_s += self._period_s
        self._view.observe(now_s, machine, event, commands)


def frames_of(log: Path, cluster: Cluster, router: str) -> list[Frame]:
    """Fold the log of a gateway into frames; the servers' own entries are not needed."""
    times_s = [entry.now_s for entry in Log(log).entries() if entry.machine in _TYPES]
    if len(times_s) < 2:
        raise DataError(f"{log.name} ends before anything happens, or is not the log of a gateway")
    recorder = Recorder(cluster, router, seconds=max(times_s[-1] - times_s[0], 1e-3), begin_s=times_s[0])
    decoders = {
        name: (msgspec.json.Decoder(event), msgspec.json.Decoder(list[command]))  # type: ignore[valid-type]
        for name, (event, command) in _TYPES.items()
    }
    try:
        for entry in Log(log).entries():
            if entry.machine in decoders:
                events, commands = decoders[entry.machine]
                recorder.observe(
                    entry.now_s, entry.machine, events.decode(entry.event), commands.decode(entry.commands)
                )
    except (msgspec.DecodeError, LookupError) as error:
        raise DataError(f"{log.name} does not fit its own scenario ({error}); write it again") from None
    return recorder.frames


_TYPES: dict[str, tuple[Any, Any]] = {
    GATEWAY_NAME: (Event, Command),
    AUTOSCALER_NAME: (LoadReported, Scale),
}
"""The machines that a view follows, with their events and commands."""
