"""What each width tuple is worth: top-1 accuracy by tuple and, when measured, image by image."""

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray

from slimsched.domain.width import SEGMENTS, WIDTH_TUPLES, WIDTHS, tuple_index
from slimsched.errors import DataError


class AccuracyTable:
    """Accuracy in [0, 1] of all 256 width tuples.

    `measured` says which tuples were measured; the others were filled in from their neighbours.
    `correct` holds, when known, one bit for each tuple and test image (packed along the images).
    """

    def __init__(
        self,
        *,
        name: str,
        accuracy: NDArray[np.float64],
        measured: NDArray[np.bool_] | None = None,
        correct: NDArray[np.uint8] | None = None,
        images: int = 0,
    ) -> None:
        if accuracy.shape != (len(WIDTH_TUPLES),) or not ((accuracy >= 0) & (accuracy <= 1)).all():
            raise DataError(
                f"accuracy table '{name}': expected 256 values in [0, 1], got shape {accuracy.shape}"
            )
        self.name = name
        self.by_tuple = accuracy
        self.measured = np.ones(len(WIDTH_TUPLES), dtype=bool) if measured is None else measured
        self.images = images
        self._correct = correct
        self._list: list[float] = accuracy.tolist()
        self._best, self._mean = _by_prefix(accuracy)

    @classmethod
    def from_bits(cls, *, name: str, correct: NDArray[np.uint8], images: int) -> Self:
        """Build the table from correctness bits (256, ceil(images / 8)); accuracy is their mean."""
        if correct.dtype != np.uint8 or correct.shape != (len(WIDTH_TUPLES), -(-images // 8)):
            raise DataError(
                f"correctness table '{name}': expected uint8 (256, {-(-images // 8)}) for {images} images, "
                f"got {correct.dtype} {correct.shape}"
            )
        accuracy = np.unpackbits(correct, axis=1, count=images).mean(axis=1, dtype=np.float64)
        return cls(name=name, accuracy=accuracy, correct=correct, images=images)

    @classmethod
    def from_points(cls, *, name: str, points: Mapping[tuple[float, ...], float]) -> Self:
        """Build the table from a few measured tuples; every other takes its nearest neighbour's value."""
        if not points:
            raise DataError(f"accuracy table '{name}' has no points; give at least one width tuple")
        known = [(np.array(widths), points[widths]) for widths in sorted(points)]
        accuracy = np.empty(len(WIDTH_TUPLES))
        measured = np.zeros(len(WIDTH_TUPLES), dtype=bool)
        for index, widths in enumerate(WIDTH_TUPLES):
            distance, value = min((float(np.abs(w - np.array(widths)).sum()), a) for w, a in known)
            accuracy[index], measured[index] = value, distance == 0.0
        return cls(name=name, accuracy=accuracy, measured=measured)

    def accuracy(self, widths: tuple[float, ...]) -> float:
        """Top-1 accuracy of a full width tuple."""
        return self._list[tuple_index(widths)]

    def best_reachable(self, prefix: tuple[float, ...]) -> float:
        """The best accuracy a request can still reach after these widths."""
        return self._best[prefix]

    def expected(self, prefix: tuple[float, ...]) -> float:
        """Mean accuracy over all ways to go on after these widths."""
        return self._mean[prefix]

    def is_correct(self, widths: tuple[float, ...], image: int) -> bool | None:
        """Whether this image was classified correctly at these widths; None when not measured."""
        if self._correct is None or not 0 <= image < self.images:
            return None
        return bool(self._correct[tuple_index(widths), image >> 3] >> (7 - (image & 7)) & 1)


def _by_prefix(
    accuracy: NDArray[np.float64],
) -> tuple[dict[tuple[float, ...], float], dict[tuple[float, ...], float]]:
    """Best and mean accuracy for every prefix of every tuple, the empty one included."""
    grid = accuracy.reshape((len(WIDTHS),) * SEGMENTS)
    best: dict[tuple[float, ...], float] = {}
    mean: dict[tuple[float, ...], float] = {}
    for widths in WIDTH_TUPLES:
        where = tuple(WIDTHS.index(w) for w in widths)
        for length in range(SEGMENTS + 1):
            if widths[:length] not in best:
                rest = grid[where[:length]]
                best[widths[:length]], mean[widths[:length]] = float(rest.max()), float(rest.mean())
    return best, mean
