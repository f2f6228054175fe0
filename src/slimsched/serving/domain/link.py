"""A link: how long bytes take from here to there."""

from msgspec import Struct


class Link(Struct, frozen=True, kw_only=True):
    """What joins a server (or the gateway) to the network: as fast out as in.

    Between two places the slower link sets the pace and both latencies count. Transfers queue.
    """

    bandwidth_bytes_per_s: float
    latency_s: float
