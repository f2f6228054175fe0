"""The autoscaler in simulated time: looks at the load now and then, starts servers and lets them leave."""

from collections.abc import Callable, Sequence
from typing import Protocol

from slimsched.kernel.observer import Observer
from slimsched.kernel.timeline import Timeline
from slimsched.serving.domain.machine import AUTOSCALER_NAME
from slimsched.serving.routing.autoscaler import AutoscaleOptions, Autoscaler, Load, LoadReported

LOOK_S = 0.25
"""Time between two looks at the load, as the roster on Ray takes it."""


class Fleet(Protocol):
    """The servers that can be started and stopped."""

    def is_up(self, server: int) -> bool:
        """Whether the gateway sends work to a server."""
        ...

    def start(self, server: int, after_s: float) -> bool:
        """Begin to start a server; False while it has not gone yet."""
        ...

    def leave(self, server: int) -> None:
        """Let a server finish what it has, and go."""
        ...


class SimulatedScaling:
    """Feeds the autoscaler the gateway's load, and takes the steps it asks for."""

    def __init__(
        self,
        options: AutoscaleOptions,
        fleet: Fleet,
        timeline: Timeline,
        load: Callable[[], Load],
        observers: Sequence[Observer],
    ) -> None:
        self._autoscaler = Autoscaler(options)
        self._options, self._fleet, self._timeline = options, fleet, timeline
        self._load, self._observers = load, observers
        self._wanted = set(range(options.min))
        timeline.at(timeline.now_s + LOOK_S, self._look)

    def _look(self, _: None) -> None:
        """Tell the autoscaler the load, let observers see what it decided, then carry that out."""
        now_s = self._timeline.now_s
        up = sum(self._fleet.is_up(server) for server in self._wanted)
        event = LoadReported(load=self._load(), wanted=len(self._wanted), up=up)
        steps = self._autoscaler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, AUTOSCALER_NAME, event, steps)
        for step in steps:
            self._scale(step.servers)
        self._timeline.at(now_s + LOOK_S, self._look)

    def _scale(self, servers: int) -> None:
        """Start the first servers that do not run, or let the last ones that do leave."""
        for server in range(self._options.max):
            if len(self._wanted) >= servers:
                break
            if server not in self._wanted and self._fleet.start(server, self._options.start_s):
                self._wanted.add(server)
        for server in sorted(self._wanted)[servers:]:
            self._wanted.discard(server)
            self._fleet.leave(server)
