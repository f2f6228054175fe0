"""A set of labelled images of one size, held in memory."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.kernel.errors import DataError


class Colours(Struct, frozen=True, kw_only=True):
    """Mean and standard deviation of each colour channel, for pixels in [0, 1]."""

    mean: tuple[float, float, float] = (0.5071, 0.4865, 0.4409)
    std: tuple[float, float, float] = (0.2673, 0.2564, 0.2762)


class ImageSet(Struct, frozen=True, kw_only=True):
    """Images (N, 3, side, side) and one label each, an index into the class names."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        shape = self.images.shape
        if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3] or shape[0] != len(self.labels):
            raise DataError(
                f"images {shape} and {len(self.labels)} labels do not fit; need (N, 3, side, side)"
            )
        if shape[0] == 0:
            raise DataError("the data set holds no image; name a folder with at least one")
        if not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise DataError(
                f"labels reach from {self.labels.min()} to {self.labels.max()}, "
                f"but there are {len(self.classes)} classes"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def side(self) -> int:
        """Height and width in pixels."""
        return int(self.images.shape[2])

    def colours(self) -> Colours:
        """Mean and deviation of each colour over the whole set."""
        mean, std = [], []
        for channel in range(3):
            counts = (
                np.bincount(self.images[:, channel].ravel(), minlength=256) / self.images[:, channel].size
            )
            values = np.arange(256) / 255
            mean.append(float(counts @ values))
            std.append(max(float(np.sqrt(counts @ values**2 - mean[-1] ** 2)), 1e-3))
        return Colours(mean=(mean[0], mean[1], mean[2]), std=(std[0], std[1], std[2]))

    def select(self, index: NDArray[np.int64]) -> "ImageSet":
        """The images at these positions."""
        return ImageSet(images=self.images[index], labels=self.labels[index], classes=self.classes)

    def split(self, held_out: int, *, seed: int) -> tuple["ImageSet", "ImageSet"]:
        """A random part to train on and another of `held_out` images to choose by."""
        if not 0 < held_out < len(self):
            raise DataError(f"cannot hold out {held_out} of {len(self)} images; hold out fewer")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.select(np.sort(order[held_out:])), self.select(np.sort(order[:held_out]))
