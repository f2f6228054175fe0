"""Servers that share one GPU: how much each slows down while its neighbours are busy."""

from collections.abc import Sequence

from slimsched.serving.domain.host import Host


class Crowding:
    """`slowdowns[n - 1]` is how much longer a batch takes beside n busy neighbours; the last holds beyond.

    Shares of MPS may sum to more than the GPU: alone a server has its whole share, together they have less.
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
        """All servers on the same GPU, itself included; none for one that has its device to itself."""
        return self._neighbours[server]

    def slowdown(self, busy: int) -> float:
        """How much longer a batch takes beside so many busy neighbours."""
        return 1.0 if busy == 0 else self._slowdowns[min(busy, len(self._slowdowns)) - 1]
