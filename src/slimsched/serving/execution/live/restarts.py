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

    @property
    def is_given_up(self) -> bool:
        """Whether nobody should wait for this server."""
        return self._failed >= FAILED_STARTS

    def ready(self, now_s: float) -> None:
        """The server takes work."""
        self._ready_s, self._failed = now_s, 0

    def ended(self, now_s: float) -> float:
        """Return how long to wait before the next start."""
        ready_s, self._ready_s = self._ready_s, None
        self._failed += ready_s is None
        is_healthy = ready_s is not None and now_s - ready_s >= HEALTHY_S
        self._short = 0 if is_healthy else self._short + 1
        if self.is_given_up:
            return TRY_AGAIN_S
        return RESTART_AFTER_S[min(self._short, len(RESTART_AFTER_S) - 1)]
