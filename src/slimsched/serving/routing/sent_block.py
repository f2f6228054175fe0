"""A block that was sent to a server and has not come back."""

from msgspec import Struct

from slimsched.serving.domain.request import Request


class SentBlock(Struct):
    """Which requests of it are still out, how many examples they have, where, and what they cost."""

    server: int
    requests: tuple[Request, ...]
    examples: int
    work_s: float  # per example
    source: int  # where its inputs came from
    sent_s: float = 0.0
    expected_s: float = 0.0  # by profile: the backlog that it joined, and its own work

    @property
    def census(self) -> tuple[int, int, int, int]:
        """Where its examples are, their model, the segment that comes next, and how many they are."""
        first = self.requests[0]
        return self.server, first.model, first.segment, self.examples
