"""A connection that was lent: another reader accepted it, and does not understand what its client sends."""

from typing import Protocol

from slimsched.serving.api.request_reader import HttpRequest


class Lender(Protocol):
    """Reads requests that it understands by itself, and lends the connections of others."""

    def knows(self, request: HttpRequest) -> bool:
        """Whether it would understand this request."""
        ...

    def returned(self, lent: "LentConnection", file: int) -> None:
        """Take a connection back."""

    def lost(self, lent: "LentConnection") -> None:
        """A connection that was lent is closed."""


class LentConnection:
    """A connection that was lent: what has arrived of its next request, and what is not yet sent."""

    def __init__(self, lender: Lender, address: str, arrived: bytes, unsent: bytes) -> None:
        self.lender, self.address, self.arrived, self.unsent = lender, address, arrived, unsent
        self.is_over = False
