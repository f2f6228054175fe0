"""Trust: whether a model's confidence still means what it meant when it was measured.

At most one answer in a hundred is checked before it is sent: the request goes on with the widest plan, and
both answers are compared. How often they should agree at each level is known from the examples. If they agree
clearly less often, the confidence is not trusted, until checks agree as they should again.
"""

from math import sqrt

EVERY, WORK_SHARE = 100, 0.02
"""At most one in this number of answers is checked, and checks take at most this share of the device time."""

LEAST_CHECKS = 20
"""No verdict before this number of checks."""

KEPT = 0.995
"""What a check still counts after the next one: about the last 200 checks decide."""

MARGIN, DEVIATIONS = 0.05, 3.0
"""Trust ends when agreement is below what is expected by this much, and by N standard deviations."""


class Trust:
    """Counts checks of one model's answers; older checks fade."""

    def __init__(self) -> None:
        self.holds = True
        """Whether the confidence is trusted."""
        self.checks = 0
        """Checks since the start."""
        self._answers, self._work = 0, 0.0  # since the last check
        self._weight = self._expected = self._agreed = self._variance = 0.0

    @property
    def expected(self) -> float:
        """How often recent answers should have agreed with the widest plan's."""
        return self._expected / self._weight if self._weight else 1.0

    @property
    def agreed(self) -> float:
        """How often recent answers agreed with the widest plan's."""
        return self._agreed / self._weight if self._weight else 1.0

    def is_due(self, work: float, extra: float) -> bool:
        """Whether to check an answer that took `work`, if a check takes `extra`; call once per answer."""
        self._answers += 1
        self._work += WORK_SHARE * work
        if self._answers < EVERY or self._work < extra:
            return False
        self._answers, self._work = 0, 0.0
        return True

    def note(self, expected: float, agrees: bool) -> bool:
        """Count a check; return whether trust began or ended by it."""
        self.checks += 1
        self._weight = KEPT * self._weight + 1.0
        self._expected = KEPT * self._expected + expected
        self._agreed = KEPT * self._agreed + agrees
        self._variance = KEPT * self._variance + expected * (1.0 - expected)
        missing = self.expected - self.agreed
        deviation = sqrt(max(self._variance, 0.25)) / self._weight
        doubtful = self.checks >= LEAST_CHECKS and missing > max(MARGIN, DEVIATIONS * deviation)
        before, self.holds = self.holds, not doubtful if self.holds else missing < MARGIN / 2
        return before != self.holds
