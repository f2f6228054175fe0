"""Images to classify: the official test set where the user has it, random ones where not."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def test_images(data: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None, str]:
    """Return images, their labels if they have any, and what they are."""
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is None:
        return random_images(), None, "random images"
    test_set = cifar.read(folder, "test")
    return test_set.images, test_set.labels, "CIFAR-100 test images"


def demo_images(data: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None, str]:
    """Return real test images where SLIM_DATA or `data` has them, generated ones where not."""
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is not None and (data is not None or cifar.find(folder) is not None):
        return test_images(folder)
    return random_images(), None, "generated images"


def random_images() -> NDArray[np.uint8]:
    """Return a thousand images of noise, the same every time."""
    return np.random.default_rng(0).integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8)
