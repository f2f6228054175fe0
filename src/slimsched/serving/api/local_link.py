"""The link between the express line and the gateway where both are in one process."""

from collections.abc import Callable

from msgspec import Struct

from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.front_desk import FrontDesk
from slimsched.serving.api.front_message import Answers
from slimsched.serving.api.service import InferenceService
from slimsched.serving.live.cluster import LiveCluster


class _Connection:
    """Passes messages on as they are."""

    def __init__(self, received: Callable[[Answers], None]) -> None:
        self._received = received

    def send(self, message: Struct) -> None:
        """Deliver a message at once."""
        assert isinstance(message, Answers)
        self._received(message)


def local_link(service: InferenceService, cluster: LiveCluster) -> BundleLink:
    """Return a link to the gateway of this process."""
    link = BundleLink(lambda calls: desk.received(calls), cluster.arena)
    desk = FrontDesk(service, cluster, _Connection(link.received))
    return link
