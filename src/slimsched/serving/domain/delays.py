"""Delays as they were measured: what a message or a call took at each moment of an earlier run."""

from bisect import bisect_left

from msgspec import Struct

from slimsched.kernel.quantity import Seconds


class Delays(Struct, frozen=True, kw_only=True):
    """Repeats measured delays: at time t, the one that was measured nearest to t, over and over.

    Slow moments of a machine last longer than one message, so delays are repeated in the order in which they
    were measured, not drawn at random.
    """

    at_s: tuple[Seconds, ...] = (0.0,)  # rising, from 0
    delay_s: tuple[Seconds, ...] = (0.0,)
    length_s: float = 1.0
    """After this time they begin again."""

    @staticmethod
    def always(delay_s: float) -> "Delays":
        """Return a delay that never changes."""
        return Delays(delay_s=(delay_s,))

    def of(self, now_s: float) -> float:
        """Return the delay of what begins now."""
        if len(self.at_s) == 1:
            return self.delay_s[0]
        within_s = now_s % self.length_s
        place = min(bisect_left(self.at_s, within_s), len(self.at_s) - 1)
        if place and within_s - self.at_s[place - 1] < self.at_s[place] - within_s:
            place -= 1
        return self.delay_s[place]
