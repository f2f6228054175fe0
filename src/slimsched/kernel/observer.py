"""Observers: they see everything that happens, as (time, machine, event, commands)."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Observer(Protocol):
    """Follows the entries of the log; it never changes them."""

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry."""
        ...
