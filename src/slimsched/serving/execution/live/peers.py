"""The seam between a server and the others: how activations come from where they were made."""

from collections.abc import Sequence
from typing import Protocol

from slimsched.models.elastic import Tensors


class Peers(Protocol):
    """Moves activations from server to server, never through the gateway."""

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """The activations of these requests from the server at this address; None if it has not got them."""
        ...
