"""A host: which part of a machine a live server uses."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.quantity import Amount, Count, CountOrZero, Percentage, PositiveShare


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device a server process uses, and its share of it.

    On a CPU: the number of threads, the cores they are bound to, and the speed. Below 1, the server rests
    after each batch to act like a slower one. On a GPU: its index, and the share of it that MPS allows. On
    Ray: the resources that the node must offer, and the labels it must have.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    threads: Count = 1
    cores: tuple[CountOrZero, ...] = ()
    speed: PositiveShare = 1.0
    gpu: CountOrZero = 0
    mps_percentage: Percentage = 100
    resources: dict[str, Amount] = {}
    labels: dict[str, str] = {}
