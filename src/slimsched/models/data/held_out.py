"""Pictures kept out of training, so that a score says how the network does on pictures it has not seen.

The names of the held-out pictures are written into the run's folder. Whoever scores the model later reads
them there, so that adding pictures to the data never mixes up what was trained on and what was not.
"""

from pathlib import Path

import numpy as np

from slimsched.kernel.errors import DataError
from slimsched.models.data.dataset import has_test_images
from slimsched.models.data.image_set import ImageSet

NAME = "held-out.txt"
DEFAULT_SHARE = 0.2


def held_out_amount(asked: float | None, data: Path) -> float:
    """What a run holds out: as asked, else a fifth where the data has no test images of its own."""
    if asked is not None:
        return asked
    return 0.0 if has_test_images(data) else DEFAULT_SHARE


def hold_out(images: ImageSet, amount: float, *, seed: int, run: Path) -> tuple[ImageSet, ImageSet]:
    """Split into pictures to train on and pictures to score; a list the run already has is kept to."""
    names = read_names(run)
    if names and images.names:
        return _without(images, names), only(images, names)
    train, scored = images.split(amount, seed=seed)
    if scored.names:
        run.mkdir(parents=True, exist_ok=True)
        (run / NAME).write_text("".join(f"{name}\n" for name in scored.names))
    return train, scored


def read_names(run: Path) -> frozenset[str]:
    """Names of the pictures that a run held out; none where it wrote no list."""
    path = run / NAME
    return frozenset(path.read_text().splitlines()) if path.is_file() else frozenset()


def only(images: ImageSet, names: frozenset[str]) -> ImageSet:
    """The pictures with these names."""
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
