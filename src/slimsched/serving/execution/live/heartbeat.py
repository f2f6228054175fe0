"""The heartbeat: asks every server for a sign of life, and names those that give none.

An engine beats four times per second. Each beat sends `Ping` to every server, and a server's event loop
answers `Pong`. Batches, models that load and sensors run in threads beside that loop, so a busy server
answers too. Any bytes from a server count, so a large message that takes long does not look like silence.

Silence is counted in beats and not in seconds: if the gateway itself was held up, it has missed beats and
not answers, and it blames nobody for that.

Code that keeps Python's lock for long can keep a server from answering although it works. Where the
operating system says that a silent server has worked, or waits for a core, it gets more time.
"""

from collections.abc import Callable, Mapping

from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.messages import Ping

BEAT_S = 0.25
SILENT_BEATS = 5
"""A server that does nothing and is silent for this many beats is suspected: after 1.25 to 1.5 s."""

BUSY_BEATS = 120
"""A server that works, but is silent for this many beats, is suspected: after 30 s."""

BUSY_SHARE = 0.1
"""A server counts as working if it ran, or waited for a core, for this share of its silence."""


class Heartbeat:
    """Counts how long servers have been silent; `activity_s` says how long a server has worked so far."""

    def __init__(self, activity_s: Callable[[int], float] = lambda server: 0.0) -> None:
        self._activity_s = activity_s
        self._silent: dict[FrameConnection, tuple[int, float]] = {}  # beats, and activity at the first

    def beat(self, connections: Mapping[int, FrameConnection]) -> list[int]:
        """Ask every server for a sign of life; return those that have given none for too long."""
        silent: dict[FrameConnection, tuple[int, float]] = {}
        suspected = []
        for server, connection in connections.items():
            if not connection.spoke_since():
                beats, worked_s = self._silent.get(connection) or (0, self._activity_s(server))
                silent[connection] = beats + 1, worked_s
                if self._is_hung(server, beats + 1, worked_s):
                    suspected.append(server)
            connection.send(Ping())
        self._silent = silent
        return suspected

    def _is_hung(self, server: int, beats: int, worked_s: float) -> bool:
        if beats < SILENT_BEATS:
            return False
        worked = self._activity_s(server) - worked_s
        return beats >= BUSY_BEATS or worked < BUSY_SHARE * beats * BEAT_S
