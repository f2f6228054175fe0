"""A set of labelled images of one size, held in memory."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import DataError, PositiveShare, Share


class Colours(Struct, frozen=True, kw_only=True):
    """Mean and standard deviation of each colour channel, for pixels in [0, 1]."""

    mean: tuple[Share, Share, Share] = (0.5071, 0.4865, 0.4409)
    std: tuple[PositiveShare, PositiveShare, PositiveShare] = (0.2673, 0.2564, 0.2762)


class ImageSet(Struct, frozen=True, kw_only=True):
    """Images (N, 3, side, side) and one label each, an index into the class names.

    `names` holds one name per image (its path below the class folders), or is empty if images have no names.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    names: tuple[str, ...] = ()

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

    def colours(self) -> Colours:
        """Compute mean and deviation of each colour over the whole set."""
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
        """Return the images at these positions."""
        names = tuple(self.names[position] for position in index) if self.names else ()
        return ImageSet(
            images=self.images[index], labels=self.labels[index], classes=self.classes, names=names
        )

    def split(self, held_out: float, *, seed: int) -> tuple["ImageSet", "ImageSet"]:
        """Split at random into images to train on and images to score, the same share of every class.

        `held_out` below 1 is a share of the images, otherwise a number of images. A class with two images
        or more gets at least one in each part.
        """
        share = held_out if held_out < 1 else held_out / len(self)
        if not 0 < share < 1:
            raise DataError(f"cannot hold out {held_out:g} of {len(self)} images; hold out fewer")
        rng = np.random.default_rng(seed)
        scored: list[NDArray[np.int64]] = []
        for label in range(len(self.classes)):
            own = rng.permutation(np.flatnonzero(self.labels == label))
            count = min(max(round(share * len(own)), 1), len(own) - 1) if len(own) else 0
            scored.append(own[:count])
        index = np.sort(np.concatenate(scored))
        if not len(index):
            raise DataError(
                f"cannot hold out any of {len(self)} images: no class has two; add images, or train on all "
                "of them with held_out = 0"
            )
        return self.select(np.setdiff1d(np.arange(len(self)), index)), self.select(index)
