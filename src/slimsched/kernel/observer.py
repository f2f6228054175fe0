"""Who may watch: everything that happens passes by as (time, machine, event, commands)."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Observer(Protocol):
    """A fold over the log; it never changes what it sees."""

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Take one entry in."""
        ...
