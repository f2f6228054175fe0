"""A fault: a server dies, hangs, leaves, returns, or changes its speed or that of its link."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.quantity import Factor, Seconds


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a fault timeline; `slowdown` multiplies all latencies, and 1 is the profile's own speed.

    A killed server loses its work. So does a hung server, but it takes longer until that is noticed. A
    server that leaves takes no new work and finishes what it has. `slow-link` divides the bandwidth
    of its link.
    """

    server: str  # which server
    at_s: Seconds  # when
    kind: Literal["kill", "hang", "leave", "restore", "slow", "slow-link"]  # what happens
    slowdown: Factor = 1.0  # for slow and slow-link: how many times slower
