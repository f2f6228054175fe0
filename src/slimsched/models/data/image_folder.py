"""A user's own images: one sub-folder per class, any size; each image is cut to a square and scaled."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from slimsched.core.config import DataError
from slimsched.models.data.images import ImageSet

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})


def read(folder: Path, *, side: int, classes: tuple[str, ...] | None = None) -> ImageSet:
    """Read every image below the class folders; classes are in alphabetical order unless given."""
    folders = (
        tuple(sorted(path.name for path in folder.iterdir() if path.is_dir())) if folder.is_dir() else ()
    )
    if not folders:
        raise DataError(f"no class folders in {folder}; expected {folder}/CLASS/IMAGE.png")
    names = classes or folders
    if unknown := set(folders) - set(names):
        raise DataError(
            f"{folder} has class '{min(unknown)}', which the network was not trained on; "
            f"it knows {len(names)} classes: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
        )
    files = [(path, label) for label, name in enumerate(names) for path in image_files(folder / name)]
    if not files:
        raise DataError(f"no images in the class folders of {folder}; expected files such as IMAGE.png")
    images = np.stack([load_square(path, side) for path, _ in files])
    return ImageSet(
        images=images,
        labels=np.array([label for _, label in files], np.int64),
        classes=names,
        names=tuple(path.relative_to(folder).as_posix() for path, _ in files),
    )


def load_square(path: Path, side: int) -> NDArray[np.uint8]:
    """Read one image and return its middle square, scaled to (3, side, side)."""
    try:
        with Image.open(path) as image:
            return square(image, side)
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{path} is no readable image ({error}); remove or replace it") from None


def square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """Return the middle square of an image, scaled to (3, side, side)."""
    rgb = image.convert("RGB")
    edge = min(rgb.size)
    left, top = (rgb.width - edge) // 2, (rgb.height - edge) // 2
    cut = rgb.resize((side, side), Image.Resampling.LANCZOS, box=(left, top, left + edge, top + edge))
    return np.ascontiguousarray(np.asarray(cut, dtype=np.uint8).transpose(2, 0, 1))


def image_files(folder: Path) -> list[Path]:
    """List the images below a folder; none if it is not there."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
