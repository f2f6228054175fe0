"""A host: which part of a machine a live server uses."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.quantity import Amount, Count, CountOrZero, Percentage, PositiveShare

CUDA_INSTANCES = 64
"""PyTorch has that many streams on a GPU, and each instance needs one of its own."""


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device a server process uses, and its share of it.

    On a CPU: the number of threads, the cores they are bound to, and the speed. Below 1, the server rests
    after each batch to act like a slower one. On a GPU: its index, and the share of it that MPS allows. On
    Ray: the resources that the node must offer, and the labels it must have.
    """

    kind: Literal["cpu", "cuda"] = "cpu"  # what the server runs on
    threads: Count = 1  # CPU threads
    cores: tuple[CountOrZero, ...] = ()  # cores that the threads are bound to; empty: any
    speed: PositiveShare = 1.0  # below 1 the server rests after each batch to act slower
    gpu: CountOrZero = 0  # number of the GPU
    mps_percentage: Percentage = 100  # share of the GPU that MPS allows
    resources: dict[str, Amount] = {}  # resources that a Ray node must offer
    labels: dict[str, str] = {}  # labels that a Ray node must have

    @property
    def instance_limit(self) -> int:
        """The most instances that the device can hold at once, whatever its memory; 0: no such limit."""
        return CUDA_INSTANCES if self.kind == "cuda" else 0
