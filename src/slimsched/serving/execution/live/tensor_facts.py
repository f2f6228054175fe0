"""What is needed to read a tensor from its bytes."""

from msgspec import Struct


class TensorFacts(Struct, frozen=True, kw_only=True):
    """Shape, strides and type of a dense tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
