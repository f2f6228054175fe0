"""Replay: feed a log's events to fresh machines and see that they ask for the same again."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from slimsched.kernel.observer import GATEWAY_NAME
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.gateway import Gateway
from slimsched.serving.routing.registry import RouterMaker, make_router
from slimsched.serving.routing.router import Router
from slimsched.serving.scheduling.greedy import GreedyScheduler
from slimsched.serving.telemetry.log import Entry


class Difference(Struct, frozen=True, kw_only=True):
    """The first entry where a fresh machine asked for something else."""

    number: int
    entry: Entry
    replayed: list[Any]


class Replayed(Struct, frozen=True, kw_only=True):
    """How far the replay went, and where it parted from the log."""

    entries: int
    machines: int
    difference: Difference | None


def replay(
    scenario: Scenario, router: str, seed: int, entries: Iterable[Entry], make: RouterMaker = make_router
) -> Replayed:
    """Feed every entry to its machine until commands differ."""
    machines: dict[str, Gateway | GreedyScheduler] = {}
    count = 0
    for count, entry in enumerate(entries, start=1):
        machine = machines.get(entry.machine)
        if machine is None:
            machine = machines[entry.machine] = _machine(
                scenario, lambda: make(router, scenario.cluster, seed), entry.machine
            )
        commands = machine.handle(entry.event, now_s=entry.now_s)  # type: ignore[arg-type]
        if commands != entry.commands:
            difference = Difference(number=count, entry=entry, replayed=list(commands))
            return Replayed(entries=count, machines=len(machines), difference=difference)
    return Replayed(entries=count, machines=len(machines), difference=None)


def _machine(scenario: Scenario, router: Callable[[], Router], name: str) -> Gateway | GreedyScheduler:
    """A fresh machine of that name; 'server-0#2' is the second life of server-0."""
    cluster = scenario.cluster
    if name == GATEWAY_NAME:
        return Gateway(cluster, router(), scenario.gateway)
    index = cluster.names.index(name.partition("#")[0])
    return GreedyScheduler(scenario.schedulers[index], cluster.profiles[index])
