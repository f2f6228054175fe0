"""Random inputs for any model, for dry runs and for users who have no examples at hand. Imports no torch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.models.arrays import NUMPY
from slimsched.models.spec import ModelSpec, TensorSpec

GRIDS = (1, 4, 16)
"""Random pictures are sums of coloured squares: one for the whole picture, 4 × 4 and 16 × 16."""


def random_arrays(spec: ModelSpec, count: int, *, seed: int = 0) -> tuple[NDArray[Any], ...]:
    """Draw inputs: normal floats, pictures for bytes in three dimensions, other integers 0 or 1."""
    rng = np.random.default_rng(seed)
    return tuple(_random(tensor, count, rng) for tensor in spec.inputs)


def _random(tensor: TensorSpec, count: int, rng: np.random.Generator) -> NDArray[Any]:
    dtype, shape = NUMPY[tensor.datatype], (count, *tensor.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if tensor.datatype == "UINT8":
        return _pictures(shape, rng) if len(tensor.shape) == 3 else rng.integers(0, 256, shape, dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _pictures(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Make pictures that differ as wholes, as photographs do; noise alone looks the same to a network."""
    *outer, height, width = shape
    total = rng.integers(96, 161, shape, np.int16)
    for grid in GRIDS:
        squares = rng.integers(-48, 49, (*outer, grid, grid), np.int16)
        rows, columns = np.arange(height) * grid // height, np.arange(width) * grid // width
        total += squares[..., rows[:, None], columns]
    return total.clip(0, 255).astype(np.uint8)
