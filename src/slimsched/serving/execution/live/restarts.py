"""Restarts: when a server that ended starts again, and when it is given up."""

RESTART_AFTER_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Time before the next start, by how many lives in a row were short."""

HEALTHY_S = 5.0
"""A life that was ready for this long is not short: the next start comes soon again."""

FAILED_STARTS = 5
"""After this many starts in a row that were never ready, the server is given up."""

TRY_AGAIN_S = 60.0
"""A server that was given up is still tried this often: its cause may go away, as a full disk does."""


class Restarts:
    """Remembers how the lives of one server went."""

    def __init__(self) -> None:
        self._short = 0  # lives in a row
        self._failed = 0  # starts in a row
        self._ready_s: float | None = None
        self._took_s: float | None = None  # the last start that succeeded

    @property
    def is_given_up(self) -> bool:
        """Whether nobody should wait for this server."""
        return self._failed >= FAILED_STARTS

    def ready(self, now_s: float, took_s: float) -> None:
        """The server takes work; its start took this long."""
        self._ready_s, self._took_s, self._failed = now_s, took_s, 0

    def ended(self, now_s: float) -> float:
        """Return how long to wait before the next start."""
        ready_s, self._ready_s = self._ready_s, None
        self._failed += ready_s is None
        is_healthy = ready_s is not None and now_s - ready_s >= HEALTHY_S
        self._short = 0 if is_healthy else self._short + 1
        if self.is_given_up:
            return TRY_AGAIN_S
        return RESTART_AFTER_S[min(self._short, len(RESTART_AFTER_S) - 1)]

    def outlook(self, wait_s: float) -> str:
        """Say when the server is started again, and how long that took the last time."""
        when = "at once" if wait_s < 1.0 else f"in {wait_s:g} s"
        took = "" if self._took_s is None else f"; the last start took {self._took_s:.1f} s"
        return f"it is started again {when}{took}"
