"""The interface for fetching activations from other servers."""

from collections.abc import Sequence
from typing import Protocol

from slimsched.models.elastic import Tensors


class Peers(Protocol):
    """Moves activations from server to server, never through the gateway."""

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations from the server at `peer`; None if it does not have all of them."""
        ...
