"""Requests that nobody waits for any more: the gateway and the servers are told in the same words."""

from msgspec import Struct


class RequestsCancelled(Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for these requests any more; what has not begun shall not begin."""

    requests: tuple[int, ...]
