"""Algorithm 1 at work: instances, utilization and memory of each server while the load rises and falls."""

import asyncio
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.kernel.log import Entry, Log, find_logs
from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.events import Event as GatewayEvent
from slimsched.serving.scheduling.commands import Command
from slimsched.serving.scheduling.events import Event as SchedulerEvent
from slimsched.serving.telemetry.fleet_history import KINDS, FleetHistory, ServerHistory
from slimsched.serving.telemetry.fleet_plot import plot_fleets

if TYPE_CHECKING:
    from slimsched.serving.execution.live.example_set import ExampleSet

ROUTER = "drift-plus-penalty:v=0.5"
"""It asks for narrower widths as queues grow, so that every rule of Algorithm 1 has work."""

TAIL_S = 1.5
"""How long the servers stay up after t_idle has passed since the last answer."""


SHOWN = tuple(
    f'"{name}"'.encode()
    for name in (
        "TelemetryReceived",
        "TelemetrySampled",
        "InstanceLoaded",
        "InstanceUnloaded",
        "LoadInstance",
        "UnloadInstance",
    )
)
"""The events and commands that a history is made of."""


def reproduce_algorithm1(
    scenario: Scenario, *, live: bool, seed: int, data: Path | None, out: Path | None
) -> tuple[dict[str, Any], Callable[[Console], None]]:
    """Return the history of every server, and a function that shows how often each rule was used."""
    history = _live(scenario, seed, data) if live else _simulated(scenario, seed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        title = f"Algorithm 1 on {scenario.name}, {'live' if live else 'simulated'}"
        options = dict(zip(scenario.cluster.names, scenario.schedulers, strict=True))
        segments = scenario.cluster.models[0].spec.segments
        plot_fleets(history.servers, options, segments, title, out / "algorithm1.png")

    def show(console: Console) -> None:
        where = "live" if live else "simulated"
        title = f"{scenario.name}, {where}: {scenario.load.description}, router {ROUTER}"
        table = Table("server", *KINDS, "utilization", "memory", title=title, title_justify="left")
        table.box, table.show_edge = SIMPLE_HEAD, False
        for name, server in history.servers.items():
            table.add_row(name, *[str(server.count(kind)) for kind in KINDS], *_peaks(server))
        console.print(table)
        for name, server in history.servers.items():
            console.print(
                f"{name}: utilization: {server.utilization_source}; memory: {server.memory_source}",
                highlight=False,
            )

    return {"scenario": scenario.name, "live": live, "servers": msgspec.to_builtins(history.servers)}, show


def _peaks(server: ServerHistory) -> tuple[str, str]:
    """Say how high utilization and memory rose."""
    utilization = max([one.utilization for one in server.samples], default=0.0)
    memory = max([one.memory_bytes for one in server.samples], default=0)
    return f"≤ {100 * utilization:.0f} %", f"≤ {memory / 1e6:,.0f} MB"


def _empty(scenario: Scenario) -> FleetHistory:
    return FleetHistory(scenario.cluster.names, scenario.cluster.models[0].spec.nested)


def _simulated(scenario: Scenario, seed: int) -> FleetHistory:
    from slimsched.serving.execution.simulated.simulation import simulate

    history = _empty(scenario)
    simulate(scenario, ROUTER, seed=seed, drain=True, observers=(history,))
    return history


def _live(scenario: Scenario, seed: int, data: Path | None) -> FleetHistory:
    from slimsched.cli.serving.examples import examples_of
    from slimsched.serving.execution.live.event_loop import run

    examples = examples_of(scenario.cluster.models, data)
    with TemporaryDirectory() as folder:
        run(_serve(scenario, seed, examples, Path(folder)))
        return _read(scenario, Path(folder))


async def _serve(scenario: Scenario, seed: int, examples: "list[ExampleSet]", folder: Path) -> None:
    """Run the load, then leave the servers up until they have unloaded what is idle."""
    from slimsched.serving.execution.live.kept_engine import KeptEngine
    from slimsched.serving.execution.live.local_engine import LocalEngine
    from slimsched.serving.execution.live.run import run_live, specs_of
    from slimsched.serving.execution.live.run_log import RunLog

    zero_s = monotonic()
    with RunLog(folder, RunSetting(scenario={}, router=ROUTER, seed=seed), len(scenario.cluster)) as log:
        engine = KeptEngine(LocalEngine(specs_of(scenario, zero_s, log)))
        print("starting the servers", file=sys.stderr)
        await engine.open()
        try:
            print(f"live: {scenario.load.description}", file=sys.stderr)
            await run_live(
                scenario,
                ROUTER,
                examples,
                seed=seed,
                observers=(log,),
                engine=engine,
                clock_zero_s=zero_s,
            )
            await asyncio.sleep(max(one.idle_unload_s for one in scenario.schedulers) + TAIL_S)
        finally:
            await engine.close()


def _read(scenario: Scenario, folder: Path) -> FleetHistory:
    """Read the logs of the gateway and its servers; time starts with the first entry of the gateway."""
    history = _empty(scenario)
    entries: list[Entry] = []
    began_s = inf
    for path in find_logs(folder):
        for entry in Log(path).entries():
            if entry.machine == GATEWAY_NAME:
                began_s = min(began_s, entry.now_s)
            if _matters(entry):
                entries.append(entry)
    of_gateway, of_server = msgspec.json.Decoder(GatewayEvent), msgspec.json.Decoder(SchedulerEvent)
    commands = msgspec.json.Decoder(list[Command])
    for entry in sorted(entries, key=lambda one: one.now_s):
        if entry.machine == GATEWAY_NAME:
            history.observe(entry.now_s - began_s, entry.machine, of_gateway.decode(entry.event), [])
        else:
            event, done = of_server.decode(entry.event), commands.decode(entry.commands)
            history.observe(entry.now_s - began_s, entry.machine, event, done)
    return history


def _matters(entry: Entry) -> bool:
    """Whether a history shows anything of an entry; most are about requests."""
    text = bytes(entry.event) + bytes(entry.commands)
    return any(word in text for word in SHOWN)
