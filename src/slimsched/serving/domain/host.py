"""How a live server sits on its machine."""

from typing import Literal

from msgspec import Struct


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device a server process uses, and its share of it.

    On a CPU: threads, the cores they are bound to, and a speed below 1 for a server that rests after each
    batch as a slower one would take. On a GPU: its index, and the share of it that MPS allows.
    On Ray: what the node must offer, and the labels it must carry.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    threads: int = 1
    cores: tuple[int, ...] = ()
    speed: float = 1.0
    gpu: int = 0
    mps_percentage: int = 100
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
