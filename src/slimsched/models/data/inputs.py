"""Inputs for any model, from files: an .npz of arrays, or images in folders."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.models.spec import ModelSpec, TensorSpec

LABELS = "labels"
FLOATS = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}


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


def numpy_type(tensor: TensorSpec) -> np.dtype[Any]:
    """Return the NumPy type of a tensor's elements."""
    return np.dtype(FLOATS.get(tensor.datatype, tensor.datatype.lower()))


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
        array = arrays[tensor.name]
        if array.shape[1:] != tensor.shape or array.dtype != numpy_type(tensor) or not len(array):
            raise DataError(
                f"{path}: array '{tensor.name}' is {array.dtype} {array.shape}; model '{spec.name}' takes "
                f"{numpy_type(tensor)} (N, {', '.join(map(str, tensor.shape))})"
            )
    labels = arrays[LABELS].astype(np.int64) if LABELS in arrays else None
    if len({len(arrays[name]) for name in names} | ({len(labels)} if labels is not None else set())) != 1:
        raise DataError(f"{path}: inputs and labels differ in their number of examples")
    return Inputs(arrays=tuple(arrays[name] for name in names), labels=labels)


def _read_folder(path: Path, spec: ModelSpec, *, labelled: bool) -> Inputs:
    from slimsched.models.data.image_folder import SUFFIXES, load_square, read

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
    files = sorted(one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"no images below {path}")
    return Inputs(arrays=(np.stack([load_square(one, shape[1]) for one in files]),))
