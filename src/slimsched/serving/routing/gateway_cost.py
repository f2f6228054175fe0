"""What a gateway's own work costs: the time of its processor for each event that it handles."""

from msgspec import Struct

from slimsched.core.config import Seconds
from slimsched.serving.routing.events import Event, RequestsArrived, SegmentFinished


class GatewayCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event takes a gateway event_s + request_s × the requests in it.

    Every event counts: arrivals, reports of batches, telemetry and wake-ups. Requests count in an arrival and
    in the report of a batch, so a request counts once more for each segment that the gateway routes. `slim
    validate` measures both.
    """

    event_s: Seconds = 0.0
    request_s: Seconds = 0.0

    def __bool__(self) -> bool:
        return self.event_s > 0.0 or self.request_s > 0.0

    def of(self, event: Event) -> float:
        """Return how long the gateway is busy with an event."""
        return self.event_s + self.request_s * requests_in(event)


def requests_in(event: object) -> int:
    """Return how many requests an event brings to the gateway."""
    if isinstance(event, RequestsArrived):
        return len(event.requests)
    if isinstance(event, SegmentFinished):
        return sum([len(block.requests) for block in event.blocks])
    return 0
