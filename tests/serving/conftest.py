"""Every machine's state is checked after each event, in whatever test of serving it runs."""

from collections.abc import Callable
from typing import Any

import pytest

from serving_checks import CHECKS

CLOSE = 40
"""A machine's state is checked after each of this many first events …"""

EVERY = 97
"""… and then after each of these: a check looks at all that is in the system."""


def checked(handle: Callable[..., Any], check: Callable[[Any], None]) -> Callable[..., Any]:
    """Wrap a machine's `handle`, so that its state is checked afterwards."""
    handled: dict[int, int] = {}

    def handle_and_check(self: Any, event: Any, *, now_s: float) -> Any:
        commands = handle(self, event, now_s=now_s)
        number = handled[id(self)] = handled.get(id(self), 0) + 1
        if number <= CLOSE or number % EVERY == 0:
            check(self)
        return commands

    return handle_and_check


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, check in CHECKS.items():
        monkeypatch.setattr(machine, "handle", checked(vars(machine)["handle"], check))
