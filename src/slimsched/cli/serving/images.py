"""Images to classify: the official test set where the user has it, random ones where not."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def test_images(data: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None, str]:
    """Images, their labels if they have any, and what they are."""
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is None:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8), None, "random images"
    found = cifar.read(folder, "test")
    return found.images, found.labels, "CIFAR-100 test images"
