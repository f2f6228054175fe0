"""A link: how long it takes to send bytes."""

from msgspec import Struct

from slimsched.kernel.quantity import PositiveAmount, Seconds


class Link(Struct, frozen=True, kw_only=True):
    """Connects a server (or the gateway) to the network, equally fast in both directions.

    Between two places the slower link sets the pace and both latencies add up. Transfers queue.
    """

    bandwidth_bytes_per_s: PositiveAmount  # bytes per second, in each direction
    latency_s: Seconds  # time of an empty message
