"""Examples to send to a model: the inputs, and the labels if known."""

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import ModelSpec, random_arrays

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
    """Draw random examples."""
    return ExampleSet(inputs=random_arrays(spec, count, seed=seed), source="random examples")
