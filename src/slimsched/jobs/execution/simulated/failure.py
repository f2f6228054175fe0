"""What stopping a gang costs, and when machines fail."""

from msgspec import Struct


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What stopping and resuming a gang costs; `interval_s` is what a failure can lose at most.

    `start_s` is what the first start costs.
    """

    save_s: float = 30.0
    restore_s: float = 30.0
    interval_s: float = 1800.0
    start_s: float = 0.0


class Failure(Struct, frozen=True, kw_only=True):
    """A machine that goes down at a time and comes back after its repair."""

    machine: str
    at_s: float
    repair_s: float
