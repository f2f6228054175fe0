"""Cancellation: the event that tells the gateway and the servers that nobody waits for some requests."""

from msgspec import Struct


class RequestsCancelled(Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for these requests any more; do not begin them."""

    requests: tuple[int, ...]
