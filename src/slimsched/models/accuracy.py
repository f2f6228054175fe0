"""What each width tuple is worth: top-1 accuracy by tuple and, when measured, image by image."""

from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from slimsched.kernel.errors import DataError
from slimsched.models.width import SEGMENTS, WIDTH_TUPLES, WIDTHS, tuple_index

Fill = Literal["nearest", "additive"]
_GRID = np.array(WIDTH_TUPLES)  # (256, 4)


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
    def from_points(
        cls, *, name: str, points: Mapping[tuple[float, ...], float], fill: Fill = "nearest"
    ) -> Self:
        """Build the table from a few measured tuples.

        The others take the value of their nearest neighbour, or, with `fill="additive"`, of a model in which
        each segment adds to the accuracy and never less when wider, fitted to the points.
        """
        if not points:
            raise DataError(f"accuracy table '{name}' has no points; give at least one width tuple")
        known = {tuple_index(widths): value for widths, value in points.items()}
        accuracy = _additive(known) if fill == "additive" else _nearest(known)
        for index, value in known.items():
            accuracy[index] = value
        return cls(name=name, accuracy=accuracy, measured=np.isin(np.arange(len(WIDTH_TUPLES)), list(known)))

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

    def hits(self, tuples: NDArray[np.int64], images: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Whether each (tuple, image) was classified correctly; None when images were not measured."""
        if self._correct is None or not ((images >= 0) & (images < self.images)).all():
            return None
        bits: NDArray[np.bool_] = (self._correct[tuples, images >> 3] >> (7 - (images & 7)) & 1).astype(bool)
        return bits


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


def _nearest(known: Mapping[int, float]) -> NDArray[np.float64]:
    """Each tuple's nearest known neighbour by total difference in width; the better one at equal distance."""
    rows = sorted(known, key=lambda index: -known[index])
    distance = np.abs(_GRID[:, None, :] - _GRID[None, rows, :]).sum(axis=2)  # (256, points)
    return np.array([known[rows[column]] for column in distance.argmin(axis=1)])


def _additive(known: Mapping[int, float]) -> NDArray[np.float64]:
    """acc(w) = a + Σ_s Σ_j d[s, j] · (w_s ≥ W_j), d ≥ 0: least squares with a light pull towards small d."""
    from scipy.optimize import nnls  # here: it takes longer to import than all of ours

    steps = (_GRID[:, :, None] >= np.array(WIDTHS[1:])).reshape(len(WIDTH_TUPLES), -1).astype(float)
    rows = np.hstack([np.ones((len(steps), 1)), steps])  # (256, 1 + 4 · 3)
    pull = 1e-2 * np.eye(rows.shape[1])[1:]
    left = np.vstack([rows[list(known)], pull])
    right = np.concatenate([list(known.values()), np.zeros(len(pull))])
    weights, _ = nnls(left, right)
    return np.clip(rows @ weights, 0.0, 1.0)
