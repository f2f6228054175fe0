"""Whereabouts: where every open request is, at the gateway or at a server, and before which segment."""

from collections.abc import Iterable

from msgspec import Struct

from slimsched.domain.block import Block
from slimsched.domain.cluster import GATEWAY
from slimsched.domain.request import Request
from slimsched.domain.width import SEGMENTS


class _Place(Struct):
    """Who has the request, the segment it waits for, and who holds its input."""

    at: int
    segment: int
    holder: int


class Whereabouts:
    """Follows requests by what the gateway is told and asks for; counts are kept as they move."""

    def __init__(self, servers: int) -> None:
        self._places: dict[int, _Place] = {}
        self._counts = [[0] * SEGMENTS for _ in range(servers + 1)]  # the gateway's are last: GATEWAY is -1

    def count(self, at: int) -> tuple[int, ...]:
        """Requests at a server, or at the gateway, by segment."""
        return tuple(self._counts[at])

    def arrived(self, requests: Iterable[Request]) -> None:
        """They wait at the gateway."""
        for request in requests:
            self._places[request.id] = _Place(GATEWAY, 0, GATEWAY)
            self._counts[GATEWAY][0] += 1

    def sent(self, block: Block, server: int, source: int) -> None:
        """A block is on its way to a server, or there."""
        for request in block.requests:
            self._move(request.id, server, block.key.segment, source)

    def finished(self, block: Block, server: int) -> None:
        """A block has passed a segment and waits for the next one; a stale report moves nothing."""
        segment = block.key.segment
        to = server if block.ahead else GATEWAY
        for request in block.requests:
            place = self._places.get(request.id)
            if place is not None and (place.at, place.segment) == (server, segment):
                self._move(request.id, to, min(segment + 1, SEGMENTS - 1), server)

    def input_lost(self, block: Block, server: int) -> None:
        """Its requests begin again from their images."""
        for request in block.requests:
            place = self._places.get(request.id)
            if place is not None and place.at == server:
                self._move(request.id, GATEWAY, 0, GATEWAY)

    def gone(self, requests: Iterable[Request]) -> None:
        """They were answered or dropped."""
        for request in requests:
            place = self._places.pop(request.id, None)
            if place is not None:
                self._counts[place.at][place.segment] -= 1

    def server_down(self, server: int) -> None:
        """What it had, and what needs an activation it held, begins again."""
        for number, place in self._places.items():
            if place.at == server or (place.at == GATEWAY and place.holder == server):
                self._move(number, GATEWAY, 0, GATEWAY)

    def _move(self, number: int, at: int, segment: int, holder: int) -> None:
        place = self._places.get(number)
        if place is None:
            return
        self._counts[place.at][place.segment] -= 1
        self._counts[at][segment] += 1
        place.at, place.segment, place.holder = at, segment, holder
