"""A block that was sent to a server and has not come back."""

from collections.abc import Iterable

from msgspec import Struct

from slimsched.serving.domain.request import Request
from slimsched.serving.routing.commands import Command, RecallRequests


class SentBlock(Struct):
    """Which requests of it are still out, where, and what they cost."""

    server: int
    requests: tuple[Request, ...]
    work_s: float  # per request
    source: int  # where its inputs came from
    sent_s: float
    expected_s: float  # by profile: the backlog that it joined, and its own work

    @property
    def census(self) -> tuple[int, int, int, int]:
        """Where its requests are, their model, the segment that comes next, and how many they are."""
        first = self.requests[0]
        return self.server, first.model, first.segment, len(self.requests)


def recalled(blocks: Iterable[SentBlock], numbers: frozenset[int]) -> list[Command]:
    """Ask servers to skip these requests if they have not begun them."""
    return [
        RecallRequests(server=sent.server, requests=there)
        for sent in blocks
        if (there := tuple(request.id for request in sent.requests if request.id in numbers))
    ]
