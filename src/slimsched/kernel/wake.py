"""How a pure machine asks to be woken: it cannot look at a clock."""

from msgspec import Struct


class WakeAt(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Command: feed me a Wake at this time."""

    at_s: float


class Wake(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Event: the time asked for has come."""
