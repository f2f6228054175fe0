"""Opens a data folder: CIFAR-100, or a user's own class folders."""

from pathlib import Path

from slimsched.core.config import DataError
from slimsched.models.data import cifar
from slimsched.models.data.image_set import ImageSet


def has_test_images(folder: Path) -> bool:
    """Whether the data has separate test images, as CIFAR-100 and class folders in `test/` do."""
    return cifar.find(folder) is not None or (folder / "test").is_dir()


def open_images(
    folder: Path, split: str, *, side: int = 32, classes: tuple[str, ...] | None = None
) -> ImageSet:
    """Read a folder's 'train' or 'test' images; class folders may be in a sub-folder of that name."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name the data with --data or SLIM_DATA")
    if cifar.find(folder) is not None:
        return cifar.read(folder, split)
    if split == "test" and not has_test_images(folder):
        raise DataError(
            f"{folder} has no test images of its own; put them into {folder}/test/CLASS, or score the "
            "pictures that training held out"
        )
    from slimsched.models.data import image_folder

    inner = folder / split
    return image_folder.read(inner if inner.is_dir() else folder, side=side, classes=classes)
