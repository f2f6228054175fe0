"""How a gateway works: how often it asks its router, and which requests it turns away."""

from typing import Literal

from msgspec import Struct

from slimsched.kernel.quantity import Seconds, Whole


class GatewayOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the router is asked, and which requests are turned away."""

    step_s: Seconds = 0.002  # time between scheduling steps; 0: at each event
    plan: Literal["segment", "network"] = "segment"  # network: all segments are planned at once
    queue_limit: Whole = 0  # requests in the system beyond which new ones are turned away; 0: no limit
    early_drop: bool = False  # give up requests whose deadline has passed
