"""Power above idle by segment, width and batch size: measured at a few points, interpolated between them."""

from math import log2

import numpy as np
from msgspec import Struct

from slimsched.serving.domain.key import Key

WIDTHS_MEASURED = (0.25, 1.0)


class ActivePower(Struct, frozen=True, kw_only=True):
    """`watts[segment][width][batch]` for the widths and batch sizes listed; beyond them, the nearest."""

    widths: tuple[float, ...]
    batches: tuple[int, ...]
    watts: list[list[list[float]]]

    def at(self, key: Key, batch: int) -> float:
        """Linear in the width and in the logarithm of the batch size."""
        sizes = [log2(size) for size in self.batches]
        by_width = [float(np.interp(log2(batch), sizes, row)) for row in self.watts[key.segment]]
        return float(np.interp(key.width, self.widths, by_width))


def batches_measured(batches: tuple[int, ...]) -> tuple[int, ...]:
    """The smallest, the middle and the largest of the batch sizes of a profile."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))
