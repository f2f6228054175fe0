"""Opens a data folder, holds some pictures out of training, and says which images a score is measured on.

A data folder is CIFAR-100 or a user's own class folders; inputs of any model also come from an .npz file.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.models.data import cifar
from slimsched.models.data.images import ImageSet
from slimsched.models.spec import NUMPY, ModelSpec

# -- Inputs for any model, from files: an .npz of arrays, or images in folders.

LABELS = "labels"


class Inputs(Struct, frozen=True, kw_only=True):
    """One array per input of the spec, and one label per example if there are labels."""

    arrays: tuple[NDArray[Any], ...]
    labels: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.arrays[0])


def read_inputs(path: Path, spec: ModelSpec, *, labelled: bool) -> Inputs:
    """Read an .npz file or a folder of images and check it against the spec."""
    if path.is_dir():
        return _read_folder(path, spec, labelled=labelled)
    if path.suffix == ".npz":
        return _read_npz(path, spec, labelled=labelled)
    raise DataError(f"no data at {path}; name a folder of images, or an .npz file with inputs and labels")


def _read_npz(path: Path, spec: ModelSpec, *, labelled: bool) -> Inputs:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no .npz file of plain arrays ({error})") from None
    names = [tensor.name for tensor in spec.inputs]
    if len(names) == 1 and names[0] not in arrays and "inputs" in arrays:
        arrays[names[0]] = arrays["inputs"]
    for name in [*names, *([LABELS] if labelled else [])]:
        if name not in arrays:
            hint = "; without labels, add --agreement" if name == LABELS else ""
            raise DataError(f"{path} has no array '{name}'; it has {', '.join(arrays) or 'none'}{hint}")
    for tensor in spec.inputs:
        array, kind = arrays[tensor.name], NUMPY[tensor.datatype]
        if array.shape[1:] != tensor.shape or array.dtype != kind or not len(array):
            raise DataError(
                f"{path}: array '{tensor.name}' is {array.dtype} {array.shape}; model '{spec.name}' takes "
                f"{kind} (N, {', '.join(map(str, tensor.shape))})"
            )
    labels = arrays[LABELS].astype(np.int64) if LABELS in arrays else None
    if len({len(arrays[name]) for name in names} | ({len(labels)} if labels is not None else set())) != 1:
        raise DataError(f"{path}: inputs and labels differ in their number of examples")
    return Inputs(arrays=tuple(arrays[name] for name in names), labels=labels)


def _read_folder(path: Path, spec: ModelSpec, *, labelled: bool) -> Inputs:
    from slimsched.models.data.image_folder import image_files, load_square, read

    shape = spec.inputs[0].shape
    square = len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2]
    if len(spec.inputs) != 1 or spec.inputs[0].datatype != "UINT8" or not square:
        raise DataError(
            f"images fit models with one UINT8 input of shape [3, side, side]; model '{spec.name}' takes "
            f"{spec.inputs[0].datatype} {list(shape)}; give an .npz file instead"
        )
    if labelled:
        images = read(path, side=shape[1], classes=spec.labels or None)
        classes = spec.outputs[0].shape[-1] if spec.outputs[0].shape else 1
        if len(images.classes) != classes:
            raise DataError(
                f"{path} has {len(images.classes)} class folders, but the model has {classes} classes; "
                "name its classes as labels in model.toml, so that folders can be matched by name"
            )
        return Inputs(arrays=(images.images,), labels=images.labels)
    if not (files := image_files(path)):
        raise DataError(f"no images below {path}")
    return Inputs(arrays=(np.stack([load_square(one, shape[1]) for one in files]),))


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


# -- Pictures kept out of training, so that scores come from pictures the network has not seen.
#
# The run's folder keeps the names of the held-out pictures, and later scoring reads them there. So adding
# pictures to the data never mixes up training pictures and held-out ones.

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
        none = f"all {len(images)} pictures are held out, none is left to train on; add pictures"
        return _where(images, [name not in names for name in images.names], none), only(images, names)
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
    return _where(
        images,
        [name in names for name in images.names],
        f"none of the {len(names)} pictures held out in training is in this folder; "
        "score every picture here with --all",
    )


def _where(images: ImageSet, chosen: list[bool], none: str) -> ImageSet:
    """Select some pictures; raise DataError with the text `none` if that leaves none."""
    if not any(chosen):
        raise DataError(none)
    return images.select(np.flatnonzero(chosen))


# -- The images that a score is measured on, with a description of them.


class ScoredImages(Struct, frozen=True, kw_only=True):
    """Images and what they are: 'test images', 'held-out pictures', 'training images', ..."""

    images: ImageSet
    kind: str

    @property
    def description(self) -> str:
        """Return a text such as '60 held-out pictures'."""
        return f"{len(self.images)} {self.kind}"


def scored_images(
    data: Path, *, side: int, classes: tuple[str, ...], run: Path | None, everything: bool = False
) -> ScoredImages:
    """Choose the images to score a model on.

    These are the data's test images if it has any, else the pictures that the model's run held out, else all
    images. In the last case the model may have been trained on them, and the description says so.
    """
    own_test = has_test_images(data)
    images = open_images(data, "test" if own_test else "train", side=side, classes=classes)
    if own_test:
        return ScoredImages(images=images, kind="test images")
    names = read_names(run) if run is not None else frozenset()
    if everything:
        kind = "pictures, held-out and training images together" if names else "pictures"
        return ScoredImages(images=images, kind=kind)
    if names:
        return ScoredImages(images=only(images, names), kind="held-out pictures")
    kind = "training images (the model was trained without held-out pictures)"
    return ScoredImages(images=images, kind=kind)
