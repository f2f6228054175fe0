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
    """A connection that was lent: what has arrived of its next request, and what is not yet sent.

    `full` says why it cannot be served at all.
    """

    def __init__(self, lender: Lender, address: str, arrived: bytes, unsent: bytes, full: str) -> None:
        self.lender, self.address, self.arrived, self.unsent, self.full = (
            lender,
            address,
            arrived,
            unsent,
            full,
        )
        self.is_over = False
