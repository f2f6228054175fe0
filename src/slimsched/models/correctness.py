"""Which test image each of the 256 tuples classifies correctly: one bit each, read without torch."""

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimsched.kernel.errors import DataError
from slimsched.models.accuracy import AccuracyTable
from slimsched.models.slimresnet import shipped


def shipped_path() -> Path:
    """The correctness bits of the shipped model."""
    return shipped.folder() / f"{shipped.NAME}-correct.npz"


def write_correctness(path: Path, correct: NDArray[np.bool_]) -> None:
    """Store rows in the order of WIDTH_TUPLES, columns in the order of the images."""
    bits = np.packbits(correct, axis=1)
    np.savez_compressed(path, correct=bits, images=np.array(correct.shape[1]))


def read_correctness(path: Path | None = None) -> AccuracyTable:
    """The accuracy table that a file of bits amounts to; the shipped model's when no path is given."""
    path = path or shipped_path()
    try:
        with np.load(path, allow_pickle=False) as file:
            correct, images = file["correct"], int(file["images"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is no correctness file ({error}); write one with slim model evaluate --bits"
        ) from None
    return AccuracyTable.from_bits(name=path.stem, correct=correct, images=images)
