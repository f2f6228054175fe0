"""The slowdown of a device: how much longer batches take than by their profile, as measured."""

WEIGHT = 0.1
"""How much the last batch counts."""

MOST = 2.0
"""How many times slower than the mean a batch counts at most: one hiccup says little about the next."""


class Slowdown:
    """A running mean over batches of measured time over profiled time."""

    def __init__(self) -> None:
        self.value = 1.0

    def note(self, took_s: float, profiled_s: float) -> None:
        """Note a batch that has run."""
        if took_s > 0.0:
            self.value += WEIGHT * (min(MOST * self.value, took_s / profiled_s) - self.value)
