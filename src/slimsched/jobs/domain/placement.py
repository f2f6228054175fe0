"""Where a gang runs: how many GPUs on which machines, and how close together they are."""

from enum import IntEnum

from slimsched.kernel.quantity import Count

Placement = tuple[tuple[str, Count], ...]
"""(machine name, GPUs there), one entry per machine."""


class Tier(IntEnum):
    """How far a gang is spread; smaller is closer."""

    MACHINE = 0
    RACK = 1
    NETWORK = 2


def gpus_in(placement: Placement) -> int:
    """GPUs a placement holds in all."""
    return sum(gpus for _, gpus in placement)
