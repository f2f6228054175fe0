"""How a pure state machine, which cannot look at a clock, asks to be woken."""

from msgspec import Struct


class WakeAt(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Command: give me a Wake at this time."""

    at_s: float


class Wake(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Event: the time asked for has come."""
