"""Reading event logs in tests: the entries of one machine with their events and commands decoded."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from slimsched.core.log import Log
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, GATEWAY_NAME
from slimsched.serving.gateway import messages as gateway_commands
from slimsched.serving.gateway import messages as gateway_events
from slimsched.serving.routers.autoscaler import LoadReported, Scale
from slimsched.serving.scheduler import scheduler


class Decoded(NamedTuple):
    now_s: float
    machine: str
    event: Any
    commands: list[Any]


def types_of(machine: str) -> tuple[Any, Any]:
    if machine == GATEWAY_NAME:
        return gateway_events.Event, gateway_commands.Command
    if machine == AUTOSCALER_NAME:
        return LoadReported, Scale
    return scheduler.Event, scheduler.Command


def entries(path: Path) -> list[Decoded]:
    found = []
    for entry in Log(path).entries():
        event, command = types_of(entry.machine)
        found.append(
            Decoded(
                entry.now_s,
                entry.machine,
                msgspec.json.decode(entry.event, type=event),
                msgspec.json.decode(entry.commands, type=list[command]),  # type: ignore[valid-type]
            )
        )
    return found
