"""How a gateway works: how often it asks its router, which requests it turns away, what its work costs."""

from typing import Literal

from msgspec import Struct

from slimsched.core.config import Seconds
from slimsched.serving.routing.gateway_cost import GatewayCost

SERVED_QUEUE_S = 10.0
"""`queue_s` where clients are served, unless they are told otherwise."""


class GatewayOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the router is asked, which requests are turned away, and what the gateway's work costs."""

    step_s: Seconds = 0.002  # time between scheduling steps; 0: at each event
    plan: Literal["segment", "network"] = "segment"  # network: all segments are planned at once
    early_drop: bool = False  # give up requests whose deadline has passed
    queue_s: Seconds = 0.0  # with early_drop: longest wait at arrival of those without a deadline; 0: any
    event_s: Seconds = 0.0  # in simulation: how long the gateway is busy with an event
    request_s: Seconds = 0.0  # in simulation: and with each request in an arrival or in the report of a batch

    @property
    def cost(self) -> GatewayCost:
        """What the gateway's own work costs; only the simulator asks."""
        return GatewayCost(event_s=self.event_s, request_s=self.request_s)
