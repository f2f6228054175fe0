"""Algorithm 1 at work: instances, utilization and memory of each server while the load rises and falls.

A history is a fold over the events and commands of a run: what Algorithm 1 loaded, refused to load and
unloaded, and when.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.core.log import Entry, Log, find_logs
from slimsched.core.plots import pyplot
from slimsched.dashboard.pictures import shades
from slimsched.serving.domain.cluster import GATEWAY_NAME, Instance
from slimsched.serving.gateway.messages import Event as GatewayEvent
from slimsched.serving.gateway.messages import TelemetryReceived
from slimsched.serving.scenario.files import RunSetting
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import (
    Command,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    SchedulerOptions,
    TelemetrySampled,
    UnloadInstance,
)
from slimsched.serving.scheduler.scheduler import Event as SchedulerEvent

if TYPE_CHECKING:
    from slimsched.serving.measure.examples import ExampleSet

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


MARKS = {
    FIRST: ("^", "#3f9a63"),
    SCALE_UP: ("P", "#1a3a78"),
    UNLOAD: ("v", "#8f61c9"),
    BLOCKED["utilization"]: ("x", "#d1842c"),
    BLOCKED["memory"]: ("X", "#b3261e"),
}


Segments = tuple[tuple[str, ...], ...]


def plot_fleets(
    histories: Mapping[str, ServerHistory],
    options_of: Mapping[str, SchedulerOptions],
    segments: Segments,
    title: str,
    path: Path,
) -> None:
    """Draw one column per server: instances by segment and choice, marks, utilization, memory."""
    plt = pyplot()
    figure, axes = plt.subplots(
        4,
        len(histories),
        figsize=(6.5 * len(histories), 10),
        sharex=True,
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": [3, 1.6, 1.4, 1.4]},
    )
    figure.suptitle(title)
    for column, (name, history) in enumerate(histories.items()):
        options = options_of[name]
        _instances(axes[0, column], history, segments)
        axes[0, column].set_title(
            f"{name}: U_blk {options.utilization_block:g}, M_max {options.vram_cap_bytes / 1e6:,.0f} MB, "
            f"Q_th {options.scale_trigger}, N_new {options.scale_cap}, t_idle {options.idle_unload_s:g} s",
            fontsize=9,
        )
        _marks(axes[1, column], history)
        _sensors(axes[2, column], axes[3, column], history, options)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _instances(axes: Any, history: ServerHistory, segments: Segments) -> None:
    """Draw how many instances of each segment and choice are loaded, as stacked steps."""
    places = sorted({change.place for change in history.changes})
    times = np.array([0.0, *sorted(change.at_s for change in history.changes)])
    rows = [_counts([one for one in history.changes if one.place == place], times) for place in places]
    colours = {}
    for segment, choices in enumerate(segments):
        for choice, colour in enumerate(shades(len(choices), segment)):
            colours[segment, choice] = colour
    if places:
        axes.stackplot(
            times,
            rows,
            step="post",
            colors=[colours[place[1:]] for place in places],
            labels=[f"segment {segment}, {segments[segment][choice]}" for _, segment, choice in places],
        )
        axes.legend(fontsize=6, ncols=4, loc="upper right")
        axes.margins(y=0.35)
    axes.set_ylabel("instances loaded")


def _counts(changes: list[Change], times: Any) -> Any:
    at = np.array([change.at_s for change in changes])
    total = np.cumsum([change.by for change in changes])
    places = np.searchsorted(at, times, side="right")
    return np.where(places > 0, total[np.maximum(0, places - 1)], 0)


def _marks(axes: Any, history: ServerHistory) -> None:
    """Draw a row of marks for each thing that Algorithm 1 does."""
    for row, (kind, (marker, colour)) in enumerate(MARKS.items()):
        at = [mark.at_s for mark in history.marks if mark.kind == kind]
        axes.scatter(at, [-row] * len(at), marker=marker, s=22, color=colour, linewidths=1)
    axes.set_yticks(
        [-row for row in range(len(MARKS))], [f"{k} ({history.count(k)})" for k in MARKS], fontsize=7
    )
    axes.set_ylim(-len(MARKS) + 0.4, 0.6)


def _sensors(upper: Any, lower: Any, history: ServerHistory, options: SchedulerOptions) -> None:
    at = [one.at_s for one in history.samples]
    upper.plot(at, [100 * one.utilization for one in history.samples], color="#4488d4")
    upper.axhline(100 * options.utilization_block, color="#d1842c", linestyle="--", linewidth=1)
    upper.set(ylabel="utilization (%)", ylim=(0, 105))
    upper.set_title(history.utilization_source, fontsize=8)
    lower.plot(at, [one.memory_bytes / 1e6 for one in history.samples], color="#3f9a63")
    lower.axhline(options.vram_cap_bytes / 1e6, color="#b3261e", linestyle="--", linewidth=1)
    lower.set(ylabel="memory (MB)", xlabel="time (s)")
    lower.set_ylim(bottom=0)
    lower.set_title(history.memory_source, fontsize=8)


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
    from slimsched.serving.simulated.run import simulate

    history = _empty(scenario)
    simulate(scenario, ROUTER, seed=seed, drain=True, observers=(history,))
    return history


def _live(scenario: Scenario, seed: int, data: Path | None) -> FleetHistory:
    from slimsched.cli.serving.scenario import examples_of
    from slimsched.serving.live.wire import run

    examples = examples_of(scenario.cluster.models, data)
    with TemporaryDirectory() as folder:
        run(_serve(scenario, seed, examples, Path(folder)))
        return _read(scenario, Path(folder))


async def _serve(scenario: Scenario, seed: int, examples: "list[ExampleSet]", folder: Path) -> None:
    """Run the load, then leave the servers up until they have unloaded what is idle."""
    from slimsched.serving.live.engine import RunLog, specs_of
    from slimsched.serving.measure.live_runs import KeptEngine, run_live

    with RunLog(folder, RunSetting(scenario={}, router=ROUTER, seed=seed), len(scenario.cluster)) as log:
        engine = KeptEngine(specs_of(scenario), log=log)
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
