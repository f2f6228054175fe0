"""The history of a server's instances: what Algorithm 1 loaded, refused to load and unloaded, and when."""

from collections.abc import Sequence

from msgspec import Struct

from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.routing.events import TelemetryReceived
from slimsched.serving.scheduling.commands import LoadInstance, UnloadInstance
from slimsched.serving.scheduling.events import InstanceLoaded, InstanceUnloaded, TelemetrySampled

FIRST = "first instance"
SCALE_UP = "scale-up"
UNLOAD = "unload"
BLOCKED = {"utilization": "blocked by utilization", "memory": "blocked by memory"}
KINDS = (FIRST, SCALE_UP, UNLOAD, *BLOCKED.values())


class Change(Struct, frozen=True):
    """An instance of (model, segment, choice) is loaded (+1), or it is gone (-1)."""

    at_s: float
    place: tuple[int, int, int]
    by: int


class Mark(Struct, frozen=True):
    """Something that Algorithm 1 did at a time; `count` times since the mark before."""

    at_s: float
    kind: str
    count: int = 1


class Sample(Struct, frozen=True):
    """What the sensors said."""

    at_s: float
    utilization: float
    memory_bytes: int


class ServerHistory(Struct, kw_only=True):
    """The history of one server."""

    changes: list[Change] = []
    marks: list[Mark] = []
    samples: list[Sample] = []
    utilization_source: str = ""
    memory_source: str = ""

    def count(self, kind: str) -> int:
        """Return how often something was done."""
        return sum(mark.count for mark in self.marks if mark.kind == kind)


class FleetHistory:
    """An observer that keeps the history of every server, by its name.

    A first instance is one for a key that no other instance could run; any further one is a scale-up.
    """

    def __init__(self, names: Sequence[str], nested: bool) -> None:
        self.servers = {name: ServerHistory() for name in names}
        self._names, self._nested = tuple(names), nested
        self._known: dict[tuple[str, int], Instance] = {}
        self._refused: dict[tuple[str, str], int] = {}

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Take one entry of the log into account."""
        if machine == GATEWAY_NAME:
            if isinstance(event, TelemetryReceived):
                self._heard(now_s, self._names[event.server], event)
            return
        history = self.servers.get(machine)
        if history is None:
            return
        if isinstance(event, InstanceLoaded):
            history.changes.append(Change(now_s, self._known[machine, event.instance].place, 1))
        elif isinstance(event, InstanceUnloaded):
            history.changes.append(Change(now_s, self._known.pop((machine, event.instance)).place, -1))
        elif isinstance(event, TelemetrySampled):
            history.samples.append(Sample(now_s, event.utilization, event.vram_bytes))
        for command in commands:
            if isinstance(command, LoadInstance):
                kind = SCALE_UP if self._has_one_for(machine, command.instance) else FIRST
                self._known[machine, command.instance.id] = command.instance
                history.marks.append(Mark(now_s, kind))
            elif isinstance(command, UnloadInstance):
                history.marks.append(Mark(now_s, UNLOAD))

    def _has_one_for(self, machine: str, wanted: Instance) -> bool:
        return any(
            (one.model, one.segment) == (wanted.model, wanted.segment)
            and (one.choice == wanted.choice or (self._nested and one.choice > wanted.choice))
            for (server, _), one in self._known.items()
            if server == machine
        )

    def _heard(self, now_s: float, server: str, event: TelemetryReceived) -> None:
        """Note how many loads were refused since the report before, and where figures come from."""
        history, snapshot = self.servers[server], event.snapshot
        history.utilization_source = snapshot.utilization_source
        history.memory_source = snapshot.memory_source
        for cause, count in snapshot.refused.items():
            more = count - self._refused.get((server, cause), 0)
            if more > 0:
                self._refused[server, cause] = count
                history.marks.append(Mark(now_s, BLOCKED[cause], more))
