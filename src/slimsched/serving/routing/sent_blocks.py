"""The blocks that are at servers: what was sent there and has not come back."""

from collections.abc import Iterator

from slimsched.serving.domain.request import Block, Request, ids_of, split_by
from slimsched.serving.routing.commands import RecallRequests
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.sent_block import SentBlock


class SentBlocks:
    """Blocks by id. The observation's count of what each server has follows them."""

    def __init__(self, seen: Observation) -> None:
        self._seen = seen
        self._blocks: dict[int, SentBlock] = {}
        self._settled: set[int] = set()  # examples that were answered meanwhile
        self._late: dict[int, list[Request]] = {}  # those of them that have come back, by server

    def get(self, block: int) -> SentBlock | None:
        """Return a block, or None if it is not at a server any more."""
        return self._blocks.get(block)

    def add(self, block: int, sent: SentBlock) -> None:
        """Note what goes to which server."""
        self._blocks[block], seen = sent, self._seen
        sent.sent_s, sent.expected_s = seen.now_s, seen.sent(sent.server, sent.examples, sent.work_s)

    def bring_back(self, block: Block) -> tuple[Request, ...]:
        """Note that a block has come back and return its requests; none if the block is stale."""
        sent = self._blocks.get(block.id)
        if sent is None:
            return ()
        count, seen = block.examples, self._seen
        if count == sent.examples:
            del self._blocks[block.id]
            seen.returned(sent.server, seen.now_s - sent.sent_s, sent.expected_s)
        else:
            sent.examples -= count
            _, sent.requests = split_by(sent.requests, set(ids_of(block.requests)))
        seen.came_back(sent.server, count, sent.work_s)
        return self._unsettled(block.requests, sent.server) if self._settled else block.requests

    def lose(self, server: int) -> Iterator[SentBlock]:
        """Take out every block that a dead server had; the observation forgets them by itself."""
        for block in [block for block, sent in self._blocks.items() if sent.server == server]:
            sent = self._blocks.pop(block)
            sent.requests = self._unsettled(sent.requests, server)
            if sent.requests:
                yield sent
        self._late.pop(server, None)

    def ids(self) -> set[int]:
        """The ids of all examples that are at servers."""
        return {number for sent in self._blocks.values() for number in ids_of(sent.requests)}

    def settle(self, numbers: frozenset[int]) -> list[Request]:
        """Return those of these examples that are at servers; they are answered now, whatever comes back."""
        there = [
            request
            for sent in self._blocks.values()
            for request in split_by(sent.requests, numbers)[0]
            if request.id not in self._settled
        ]
        self._settled.update(ids_of(there))
        return there

    def _unsettled(self, requests: tuple[Request, ...], server: int) -> tuple[Request, ...]:
        """Return the requests that still need an answer; the others have come back now."""
        gone, others = split_by(requests, self._settled)
        self._settled.difference_update(ids_of(gone))
        if gone:
            self._late.setdefault(server, []).extend(gone)
        return others

    def take_late(self, server: int) -> list[Request]:
        """Return what has come back from a server, since this was last asked, after it was answered."""
        return self._late.pop(server, [])

    def recalls(self, numbers: frozenset[int]) -> list[RecallRequests]:
        """Ask servers to skip these requests if they have not begun them."""
        return [
            RecallRequests(server=sent.server, requests=there)
            for sent in self._blocks.values()
            if (there := tuple(number for number in ids_of(sent.requests) if number in numbers))
        ]

    def involve(self, server: int) -> bool:
        """Whether any block is at a server, or comes from there."""
        return any(server in (sent.server, sent.source) for sent in self._blocks.values())

    def census(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield for each block where it is, its model, its segment and how many examples it has."""
        return (sent.census for sent in self._blocks.values())
