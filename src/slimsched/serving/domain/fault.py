"""A fault: a server dies, returns or changes its speed at a given time."""

from typing import Literal

from msgspec import Struct


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a fault timeline; `slowdown` multiplies all latencies, 1 is the profile's own speed."""

    server: str
    at_s: float
    kind: Literal["kill", "restore", "slow"]
    slowdown: float = 1.0
