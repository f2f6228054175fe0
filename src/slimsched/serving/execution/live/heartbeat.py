"""The heartbeat: asks every server for a sign of life, and names those that give none.

An engine beats four times per second. Each beat sends `Ping` to every server, and a server's event loop
answers `Pong`. Batches, models that load and sensors run in threads beside that loop, so a busy server
answers too. Any bytes from a server count, so a large message that takes long does not look like silence.

Silence is counted in beats and not in seconds: if the gateway itself was held up, it has missed beats and
not answers, and it blames nobody for that.

A server may be silent and not hang, so the operating system is asked at each silent beat:

* One that does nothing at all, because it sleeps or is stopped, is suspected after `SILENT_BEATS`.
* Code that keeps Python's lock for long can keep a server from answering although it works. A server that
  works, or waits for a disk, is suspected after `BUSY_BEATS`.
* A server that could run and gets no core is not to blame, however long that takes. Of a beat in which it
  had a core for a tenth, a tenth counts.
"""

from collections.abc import Callable, Collection, Mapping

from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.messages import Ping
from slimsched.serving.execution.live.process_activity import Activity

BEAT_S = 0.25
SILENT_BEATS = 5
"""A server that does nothing and is silent for this many beats is suspected: after 1.25 to 1.5 s."""

BUSY_BEATS = 120
"""A server that works, but is silent for this many beats, is suspected: after 30 s with a core."""

BUSY_SHARE = 0.1
"""A server counts as working in a beat if it ran, or waited for a core, for this share of it."""

Look = Callable[[int], Activity]
"""Says what the process of a server does."""


class OwnBeats:
    """Counts the beats that a process has had for itself: all, less those in which it got no core."""

    def __init__(self) -> None:
        self.beats = 0.0
        self.waited_beats = 0.0
        """The beats, or parts of beats, for which it could have run and got no core."""
        self.still_beats = 0
        """The last beats in a row in which it did nothing."""
        self._last: Activity | None = None

    def count(self, now: Activity) -> None:
        """Count one beat, at the end of which the process does this."""
        last, self._last = self._last or now, now
        ran_s, waited_s = now.ran_s - last.ran_s, now.waited_s - last.waited_s
        is_first = last is now  # how much it ran before is not known
        share = 1.0 if is_first or not now.is_runnable else min(1.0, max(0.0, ran_s / BEAT_S))
        self.beats += share
        self.waited_beats += 1.0 - share
        is_active = now.is_runnable or now.is_on_disk or ran_s + waited_s >= BUSY_SHARE * BEAT_S
        self.still_beats = 0 if is_active else self.still_beats + 1


class Heartbeat:
    """Counts how long servers have been silent; `look` says what the process of a server does."""

    def __init__(self, look: Look = lambda server: Activity()) -> None:
        self._look = look
        self._silent: dict[FrameConnection, OwnBeats] = {}
        self.core_waits_s: dict[int, float] = {}
        """For how long each silent server has got no core since it was last heard."""

    def beat(self, connections: Mapping[int, FrameConnection]) -> list[int]:
        """Ask every server for a sign of life; return those that have given none for too long."""
        silent: dict[FrameConnection, OwnBeats] = {}
        self.core_waits_s, suspected = {}, []
        for server, connection in connections.items():
            if not connection.spoke_since():
                own = silent[connection] = self._silent.get(connection) or OwnBeats()
                own.count(self._look(server))
                self.core_waits_s[server] = own.waited_beats * BEAT_S
                if own.still_beats >= SILENT_BEATS or own.beats >= BUSY_BEATS:
                    suspected.append(server)
            connection.send(Ping())
        self._silent = silent
        return suspected


class StartLimit:
    """Counts how long starts take; time in which a starting process gets no core does not count."""

    def __init__(self, limit_s: float, look: Look) -> None:
        self._limit_beats, self._look = limit_s / BEAT_S, look
        self._own: dict[int, OwnBeats] = {}
        self.core_waits_s: dict[int, float] = {}
        """For how long those have got no core that would be late without that."""

    def beat(self, starting: Collection[int]) -> list[int]:
        """Count a beat for each server that starts; return those that take too long."""
        for server in starting:
            self._own.setdefault(server, OwnBeats()).count(self._look(server))
        overdue = {
            server: own
            for server in starting
            if (own := self._own[server]).beats + own.waited_beats > self._limit_beats
        }
        self.core_waits_s = {server: own.waited_beats * BEAT_S for server, own in overdue.items()}
        return [server for server, own in overdue.items() if own.beats > self._limit_beats]

    def forget(self, server: int) -> None:
        """A start is over: the next one counts from its beginning."""
        self._own.pop(server, None)
