"""Restarts: when a server that ended starts again, and when it is given up."""

RESTART_AFTER_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Time before the next start, by how many lives in a row were short."""

HEALTHY_S = 5.0
"""A life that was ready for this long is not short: the next start comes soon again."""

FAILED_STARTS = 5
"""After this many starts in a row that were never ready, the server is given up."""


class Restarts:
    """Remembers how the lives of one server went."""

    def __init__(self) -> None:
        self._short = 0  # lives in a row
        self._failed = 0  # starts in a row
        self._ready_s: float | None = None

    def ready(self, now_s: float) -> None:
        """The server takes work."""
        self._ready_s, self._failed = now_s, 0

    def ended(self, now_s: float) -> float | None:
        """Return how long to wait before the next start; None: it is given up."""
        ready_s, self._ready_s = self._ready_s, None
        if ready_s is None:
            self._failed += 1
            if self._failed >= FAILED_STARTS:
                return None
        is_healthy = ready_s is not None and now_s - ready_s >= HEALTHY_S
        self._short = 0 if is_healthy else self._short + 1
        return RESTART_AFTER_S[min(self._short, len(RESTART_AFTER_S) - 1)]
