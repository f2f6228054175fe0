"""Examples to send to a model: the inputs, and the labels if known."""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.arrays import NUMPY
from slimsched.models.spec import ModelSpec

MADE_UP = 256
"""Number of random examples to use if there are no real ones."""


class ExampleSet(Struct, frozen=True, kw_only=True):
    """`inputs` holds one array per input tensor, one row per example; `source` says where they come from."""

    inputs: tuple[NDArray[Any], ...]
    labels: NDArray[np.int64] | None = None
    source: str = ""

    def __len__(self) -> int:
        return len(self.inputs[0])

    def row(self, example: int) -> list[bytes]:
        """Return the bytes of one example, by input tensor."""
        return [array[example].tobytes() for array in self.inputs]


def made_up_examples(spec: ModelSpec, count: int = MADE_UP, seed: int = 0) -> ExampleSet:
    """Draw examples: floats from the normal distribution, bytes over their range, other integers 0 or 1."""
    rng = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for tensor in spec.inputs:
        dtype, shape = NUMPY[tensor.datatype], (count, *tensor.shape)
        if dtype.kind == "f":
            arrays.append(rng.standard_normal(shape).astype(dtype))
        else:
            arrays.append(rng.integers(0, 256 if tensor.datatype == "UINT8" else 2, shape).astype(dtype))
    return ExampleSet(inputs=tuple(arrays), source="random examples")
