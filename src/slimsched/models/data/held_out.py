"""Pictures kept out of training, so that scores come from pictures the network has not seen.

The run's folder keeps the names of the held-out pictures. Later scoring reads them there, so adding pictures
to the data never mixes up training pictures and held-out ones.
"""

from pathlib import Path

import numpy as np

from slimsched.core.config import DataError
from slimsched.models.data.dataset import has_test_images
from slimsched.models.data.image_set import ImageSet

NAME = "held-out.txt"
DEFAULT_SHARE = 0.2


def held_out_amount(asked: float | None, data: Path) -> float:
    """Return how much to hold out: `asked`, else a fifth if the data has no test images."""
    if asked is not None:
        return asked
    return 0.0 if has_test_images(data) else DEFAULT_SHARE


def hold_out(images: ImageSet, amount: float, *, seed: int, run: Path) -> tuple[ImageSet, ImageSet]:
    """Split into pictures to train on and pictures to score; reuse the run's list if it has one."""
    names = read_names(run)
    if names and images.names:
        return _without(images, names), only(images, names)
    train, scored = images.split(amount, seed=seed)
    if scored.names:
        run.mkdir(parents=True, exist_ok=True)
        (run / NAME).write_text("".join(f"{name}\n" for name in scored.names))
    return train, scored


def read_names(run: Path) -> frozenset[str]:
    """Read the names of the pictures that a run held out; empty if it wrote no list."""
    path = run / NAME
    return frozenset(path.read_text().splitlines()) if path.is_file() else frozenset()


def only(images: ImageSet, names: frozenset[str]) -> ImageSet:
    """Select the pictures with these names."""
    index = [position for position, name in enumerate(images.names) if name in names]
    if not index:
        raise DataError(
            f"none of the {len(names)} pictures held out in training is in this folder; "
            "score every picture here with --all"
        )
    return images.select(np.array(index, np.int64))


def _without(images: ImageSet, names: frozenset[str]) -> ImageSet:
    index = [position for position, name in enumerate(images.names) if name not in names]
    if not index:
        raise DataError(f"all {len(images)} pictures are held out, none is left to train on; add pictures")
    return images.select(np.array(index, np.int64))
