"""Every machine checks its own state after each event, in whatever test of serving it runs."""

from collections.abc import Callable
from typing import Any

import pytest

from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.routers.autoscaler import Autoscaler
from slimsched.serving.scheduler.scheduler import GreedyScheduler

CLOSE = 40
"""A machine checks its state after each of this many first events …"""

EVERY = 97
"""… and then after this many more, or a tenth of what is in the system, which a check looks through."""


def checked(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a machine's `handle`, so that it checks its state afterwards."""
    handled: dict[int, int] = {}
    due: dict[int, int] = {}

    def handle_and_check(self: Any, event: Any, *, now_s: float) -> Any:
        commands = handle(self, event, now_s=now_s)
        number = handled[id(self)] = handled.get(id(self), 0) + 1
        if number <= CLOSE or number >= due.get(id(self), EVERY):
            self.validate()
            due[id(self)] = number + max(EVERY, getattr(self, "in_system", 0) // 10)
        return commands

    return handle_and_check


@pytest.fixture(autouse=True)
def checks(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in (Gateway, GreedyScheduler, Autoscaler):
        monkeypatch.setattr(machine, "handle", checked(machine.handle))
