"""Whereabouts: where each open request is (at the gateway or a server), and its next stage.

A log that is read again is followed request by request; a gateway that runs is asked.
"""

from collections.abc import Callable, Iterable, Sequence

from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.request import Block, Request, ids_of
from slimsched.serving.telemetry.stage import Stages

Place = tuple[int, int, int]
"""Where a request is, the stage it waits for, and where its input is."""


Census = Callable[[], Iterable[tuple[int, int, int, int]]]
"""Counts open requests: where they are, their model, the segment they wait for or run, and how many."""


class Headcount:
    """Asks a gateway where its requests are; following each of them would cost more than routing it."""

    def __init__(self, servers: int, stages: Stages, census: Census) -> None:
        self._servers, self._stages, self._census = servers, stages, census

    def counts(self) -> list[list[int]]:
        """Count the requests at each server, and last at the gateway, by stage."""
        counts = [[0] * len(self._stages) for _ in range(self._servers + 1)]
        for place, model, segment, requests in self._census():
            counts[place][self._stages.stage(model, segment)] += requests  # the gateway's number is -1
        return counts

    def grow(self, stages: Stages) -> None:
        """Know the stages of further models."""
        self._stages = stages

    def arrived(self, requests: Sequence[Request]) -> None:
        """The gateway knows."""

    def sent(self, block: Block, server: int, source: int) -> None:
        """The gateway knows."""

    def finished(self, block: Block, server: int, segments: int) -> None:
        """The gateway knows."""

    def input_lost(self, block: Block, server: int) -> None:
        """The gateway knows."""

    def gone(self, requests: Sequence[Request]) -> None:
        """The gateway knows."""

    def server_down(self, server: int) -> None:
        """The gateway knows."""


class Whereabouts:
    """Follows requests through the gateway's events and commands, and counts them by place."""

    def __init__(self, servers: int, stages: Stages) -> None:
        self._stages = stages
        self._places: dict[int, Place] = {}
        self._counts = [
            [0] * len(stages) for _ in range(servers + 1)
        ]  # the last row is the gateway's: its number is -1

    def grow(self, stages: Stages) -> None:
        """Know the stages of further models, which stand behind those that were there."""
        self._stages = stages
        for counts in self._counts:
            counts += [0] * (len(stages) - len(counts))

    def counts(self) -> list[list[int]]:
        """Count the requests at each server, and last at the gateway, by stage."""
        return self._counts

    def arrived(self, requests: Sequence[Request]) -> None:
        """Note that requests wait at the gateway."""
        for request in requests:
            stage = self._stages.first[request.model]
            self._places.update(dict.fromkeys(request.ids, (GATEWAY, stage, GATEWAY)))
            self._counts[GATEWAY][stage] += request.count

    def sent(self, block: Block, server: int, source: int) -> None:
        """Note that a block is on its way to a server, or there."""
        self._move(ids_of(block.requests), (server, self._stage(block), source))

    def finished(self, block: Block, server: int, segments: int) -> None:
        """Note that a block has run some segments and waits for the next; ignore stale reports."""
        stage = self._stage(block)
        numbers = [n for n in ids_of(block.requests) if self._is_at(n, server, stage)]
        self._move(numbers, (GATEWAY, min(stage + segments, self._stages.last(block.key.model)), server))

    def input_lost(self, block: Block, server: int) -> None:
        """Note that a block's requests begin again from their original inputs."""
        stage = self._stage(block)
        numbers = [n for n in ids_of(block.requests) if self._is_at(n, server, stage)]
        self._move(numbers, self._beginning(stage))

    def gone(self, requests: Sequence[Request]) -> None:
        """Note that requests were answered or dropped."""
        self._leave(ids_of(requests))

    def server_down(self, server: int) -> None:
        """Restart the requests that a server had, and those whose activations it held."""
        lost: dict[Place, list[int]] = {}
        for number, (at, stage, holder) in self._places.items():
            if at == server or (at == GATEWAY and holder == server):
                lost.setdefault(self._beginning(stage), []).append(number)
        for beginning, numbers in lost.items():
            self._move(numbers, beginning)

    def _stage(self, block: Block) -> int:
        return self._stages.stage(block.key.model, block.key.segment)

    def _beginning(self, stage: int) -> Place:
        """Return the place where requests at this stage begin again."""
        return (GATEWAY, max(first for first in self._stages.first if first <= stage), GATEWAY)

    def _is_at(self, number: int, server: int, stage: int) -> bool:
        place = self._places.get(number)
        return place is not None and place[0] == server and place[1] == stage

    def _move(self, numbers: Sequence[int], to: Place) -> None:
        known = self._leave(numbers)
        self._places.update(dict.fromkeys(known, to))
        self._counts[to[0]][to[1]] += len(known)

    def _leave(self, numbers: Sequence[int]) -> list[int]:
        """Remove requests from their places and return the open ones. Usually all are in one place."""
        places = [self._places.pop(number, None) for number in numbers]
        if places and places[0] is not None and places.count(places[0]) == len(places):
            self._counts[places[0][0]][places[0][1]] -= len(places)
            return list(numbers)
        for place in places:
            if place is not None:
                self._counts[place[0]][place[1]] -= 1
        return [number for number, place in zip(numbers, places, strict=True) if place is not None]
