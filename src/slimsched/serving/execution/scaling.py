"""Scaling: tells the autoscaler the load at regular times, and starts and stops servers as it asks."""

from collections.abc import Callable, Sequence
from typing import Protocol

from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import AUTOSCALER_NAME
from slimsched.serving.routing.autoscaler import AutoscaleOptions, Autoscaler, Load, LoadReported

LOOK_S = 0.25
"""Time between two looks at the load; the roster on Ray uses the same time."""


class Fleet(Protocol):
    """The servers that can be started and stopped."""

    def is_up(self, server: int) -> bool:
        """Whether a server takes work."""
        ...

    def start_server(self, server: int) -> bool:
        """Begin to start a server; return False while its last life has not ended."""
        ...

    def drain_server(self, server: int) -> None:
        """Let a server finish its work, then stop it."""
        ...


class Scaling:
    """Tells the autoscaler the load and carries out its steps; a driver calls `look`."""

    def __init__(
        self,
        options: AutoscaleOptions,
        fleet: Fleet,
        load: Callable[[], Load],
        observers: Sequence[Observer],
    ) -> None:
        self._autoscaler = Autoscaler(options)
        self._options, self._fleet, self._load, self._observers = options, fleet, load, observers
        self._wanted = set(range(options.min))

    def look(self, now_s: float) -> None:
        """Tell the autoscaler the load, show observers what it decided, then carry that out."""
        up = sum(self._fleet.is_up(server) for server in self._wanted)
        event = LoadReported(load=self._load(), wanted=len(self._wanted), up=up)
        steps = self._autoscaler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, AUTOSCALER_NAME, event, steps)
        for step in steps:
            self._scale(step.servers)

    def _scale(self, servers: int) -> None:
        """Start the first servers that do not run, or drain the last ones that do."""
        for server in range(self._options.max):
            if len(self._wanted) >= servers:
                break
            if server not in self._wanted and self._fleet.start_server(server):
                self._wanted.add(server)
        for server in sorted(self._wanted)[servers:]:
            self._wanted.discard(server)
            self._fleet.drain_server(server)
