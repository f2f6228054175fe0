"""Crowding: how much servers that share a GPU slow down while their neighbours are busy."""

from collections.abc import Sequence

from slimsched.serving.domain.host import Host


class Crowding:
    """How servers on one GPU slow down: `slowdowns[n - 1]` is for n busy neighbours, the last also for more.

    MPS shares may add up to more than the whole GPU. A server has its full share while it is alone, and less
    while others are busy.
    """

    def __init__(self, hosts: Sequence[Host | None], slowdowns: Sequence[float]) -> None:
        places = [host.gpu if host is not None and host.kind == "cuda" else None for host in hosts]
        self._slowdowns = tuple(slowdowns)
        self._neighbours = [
            [other for other, there in enumerate(places) if there is not None and there == here]
            for here in places
        ]

    def __bool__(self) -> bool:
        return bool(self._slowdowns)

    def neighbours(self, server: int) -> list[int]:
        """List all servers on the same GPU, including this one; empty if it does not run on a GPU."""
        return self._neighbours[server]

    def slowdown(self, busy: int) -> float:
        """Return how much longer a batch takes while this many neighbours are busy."""
        return 1.0 if busy == 0 else self._slowdowns[min(busy, len(self._slowdowns)) - 1]
