"""`slim demo`: the embedded cluster under bursts that random routing cannot hold, first random, then ours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slimsched.cli.options import AsJson, Seed, need, with_options
from slimsched.cli.serving.scenario import (
    ArrivalsName,
    Choice,
    Data,
    GoalText,
    LiveScenarioOptions,
    LoadOptions,
    RouterList,
    arrival_s,
    check_goal,
    check_reach,
    describe,
    examples_of,
)
from slimsched.core.config import Factor, Milliseconds, RunSeconds
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import count_examples
from slimsched.serving.gateway.messages import Answer, Drop, RequestsArrived, TelemetryReceived
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.routers.registry import SERVING, split_specs
from slimsched.serving.scenario.files import RunSetting
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.pictures import plot_runs
from slimsched.serving.telemetry.run_folder import energy_bound, make_folder, trace_arrays, write_run

if TYPE_CHECKING:
    from slimsched.serving.measure.live_runs import LiveResult

# -- How a live run goes, shown while it runs.


class LiveProgress:
    """An observer that shows how a run goes; plain lines where the output is not a terminal."""

    def __init__(self, console: Console, router: str, scenario: Scenario) -> None:
        self._router, self._models, self._console = router, scenario.cluster.models, console
        self._seconds = scenario.load.seconds
        self._arrived = self._answered = self._in_time = self._dropped = 0
        self._worth = 0.0
        self._began_s: float | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(f"{router}: starting the servers", total=None)

    def __enter__(self) -> "LiveProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._task, description=self._text())
        self._bar.stop()
        if not self._console.is_terminal:
            self._console.print(self._text(), highlight=False)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Count what one entry of the log says."""
        if isinstance(event, TelemetryReceived) and self._began_s is not None:
            passed_s = min(self._seconds, now_s - self._began_s)
            self._bar.update(self._task, description=self._text(), completed=passed_s, total=self._seconds)
        elif isinstance(event, RequestsArrived):
            self._began_s = now_s if self._began_s is None else self._began_s
            self._arrived += count_examples(event.requests)
        for command in commands:
            if isinstance(command, Answer):
                self._answered += count_examples(command.requests)
                self._in_time += sum(one.count for one in command.requests if now_s <= one.deadline_s)
                self._worth += sum(
                    one.count * self._models[one.model].expected_accuracy(one.path, one.trail)
                    for one in command.requests
                )
            elif isinstance(command, Drop):
                self._dropped += count_examples(command.requests)

    def _text(self) -> str:
        worth = f"{self._worth / self._answered:.1%}" if self._answered else "–"
        done = max(1, self._answered + self._dropped)
        return (
            f"{self._router:>10}: {self._arrived:5d} requests, {self._in_time / done:6.1%} in time, "
            f"{self._dropped:4d} dropped, plans worth {worth}"
        )


FOR_CLIENTS = {"order": "deadline", "early_drop": True, "priorities": True}
"""What the schedulers promise to clients; `Scenario.for_clients` sets the same."""


class Row(Struct, frozen=True, kw_only=True):
    """One line of the comparison; accuracy is of answered requests, rates are requests per second."""

    router: str
    arrived: int
    answered: int
    accuracy: float
    accuracy_source: str
    correct_in_time_per_s: float
    in_time_share: float
    latency_p50_s: float
    latency_p99_s: float
    energy_j_per_example: float
    energy_source: str
    choices: dict[str, float]
    dispatch_error_p99_s: float


class DemoOptions(Struct, frozen=True, kw_only=True):
    """What to run, and where to leave it."""

    routers: RouterList = f"random,{SERVING}"
    goal: GoalText = None
    load: Annotated[
        Factor, typer.Option("--load", help="Mean rate, as a multiple of what random routing can hold.")
    ] = 1.5
    arrivals: ArrivalsName = "fitted"
    seconds: Annotated[RunSeconds, typer.Option("--seconds", help="Length of each run.")] = 20.0
    deadline_ms: Annotated[Milliseconds, typer.Option("--deadline-ms", help="Deadline of each request.")] = (
        500.0
    )
    data: Data = None
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("runs/demo")
    seed: Seed = 0

    def specs(self) -> list[str]:
        """List the routers to run."""
        specs = split_specs(self.routers)
        check_goal(self.goal, specs)
        return specs


@with_options
def command(scenario: LiveScenarioOptions, demo: DemoOptions, as_json: AsJson = False) -> None:
    """Start servers of unequal speed on this machine and send them more than random routing can hold.

    Every router gets the same arrivals and the same examples, in a run of its own. This takes about a minute
    and leaves nothing running.

    Examples:

      slim demo

      slim demo --seconds 10 --routers random,jsq,drift-plus-penalty,goal

      slim demo --arrivals trace.csv --json
    """
    need("torch")
    specs, chosen = demo.specs(), _choose(scenario, demo)
    check_reach(specs, chosen.scenario)
    examples = examples_of(chosen.scenario.cluster.models, demo.data)
    kind = describe(examples)
    console = Console(stderr=True)
    _announce(console, chosen, demo, kind)
    make_folder(demo.out)
    results = []
    for spec, folder in zip(specs, _log_folders(specs), strict=True):
        setting = chosen.setting(spec, demo.seed, for_clients=True)
        progress = LiveProgress(console, _short(spec), chosen.scenario)
        results.append(_run(chosen.scenario, setting, demo.out / folder, examples, progress))
    rows = [_row(result) for result in results]
    _write(demo, chosen, rows, [result.trace for result in results])
    if as_json:
        print(json.dumps({"examples": kind, "runs": to_builtins(rows), "folder": str(demo.out)}, indent=1))
    else:
        _print(Console(), rows)
        _explain(Console(soft_wrap=True), rows, demo.out)


def _choose(scenario: LiveScenarioOptions, demo: DemoOptions) -> Choice:
    """Read the scenario, with what clients are promised, and set its load."""
    load = LoadOptions(arrivals=demo.arrivals, seconds=demo.seconds, deadline_ms=demo.deadline_ms)
    chosen = scenario.read(demo.goal).under(load)
    rate_per_s = demo.load * random_holds_per_s(chosen.scenario.cluster)
    return replace(chosen, scenario=chosen.scenario.for_clients().with_load(rate_per_s=rate_per_s))


def _as_run(chosen: Choice) -> Choice:
    """Return the choice with the scenario file as it was really run."""
    gateway = to_builtins(chosen.scenario.gateway)
    scheduler = {**chosen.raw.get("scheduler", {}), **FOR_CLIENTS}
    return replace(chosen, raw={**chosen.raw, "gateway": gateway, "scheduler": scheduler})


def random_holds_per_s(cluster: Cluster) -> float:
    """Return the rate at which the slowest server saturates under uniform random routing.

    It gets the share 1/n of every segment, at any choice: λ = n / max_i Σ_s mean_k work_i(k of s).
    """
    total_s = np.zeros(len(cluster))
    for model in cluster.models:
        for segment in range(model.segments):
            keys = [key for key in model.keys.values() if key.segment == segment]
            total_s += np.mean([cluster.work_s[key] for key in keys], axis=0) / len(cluster.models)
    return float(len(cluster) / total_s.max())


def _announce(console: Console, chosen: Choice, demo: DemoOptions, kind: str) -> None:
    """Say what is about to run."""
    scenario = chosen.scenario
    shape = "arrivals fitted to a real trace" if demo.arrivals == "fitted" else f"{demo.arrivals} arrivals"
    console.print(
        f"{scenario.description or scenario.name}; {kind}; {shape}, "
        f"{scenario.load.rate_per_s:.0f} requests/s on average, {demo.load:g} × what random routing "
        f"can hold; deadline {demo.deadline_ms:g} ms",
        highlight=False,
    )


def _run(
    scenario: Scenario,
    setting: RunSetting,
    folder: Path,
    examples: Sequence[ExampleSet],
    progress: LiveProgress,
) -> "LiveResult":
    """Run one router live; every process leaves its event log in the folder."""
    from slimsched.serving.live.processes import RunLog
    from slimsched.serving.live.wire import run
    from slimsched.serving.measure.live_runs import run_live

    for old in make_folder(folder).glob("events-*.jsonl.gz"):
        old.unlink()
    router, seed = setting.router, setting.seed
    with progress, RunLog(folder, setting, len(scenario.cluster)) as log:
        return run(run_live(scenario, router, examples, seed=seed, observers=[progress], log=log))


def _write(demo: DemoOptions, chosen: Choice, rows: Sequence[Row], traces: Sequence[Trace]) -> None:
    """Leave the figures and the picture in the folder."""
    scenario = chosen.scenario
    arrays = trace_arrays(traces, arrival_s(scenario, demo.seed))
    arrays |= energy_bound(scenario.cluster, scenario.load.rate_per_s, scenario.shares)
    summaries = [to_builtins(trace.summary) for trace in traces]
    write_run(demo.out, _as_run(chosen).about(demo.seed), summaries, arrays)
    (demo.out / "comparison.json").write_text(json.dumps(to_builtins(rows), indent=1) + "\n")
    title = f"{scenario.name}: {demo.arrivals} arrivals at {demo.load:g} × what random can hold"
    plot_runs(traces, scenario.cluster.models, title, demo.out / "plot.png")


def _row(result: "LiveResult") -> Row:
    row = result.trace.summary
    accuracy = result.accuracy if result.accuracy is not None else row.accuracy_prior
    return Row(
        router=row.router,
        arrived=row.arrived,
        answered=row.completed,
        accuracy=accuracy,
        accuracy_source="counted on the examples' labels"
        if result.accuracy is not None
        else "of the plans served, from the measured table (made-up examples have no labels)",
        correct_in_time_per_s=accuracy * row.goodput_per_s,
        in_time_share=row.slo_attainment,
        latency_p50_s=row.latency_p50_s,
        latency_p99_s=row.latency_p99_s,
        energy_j_per_example=row.energy_j_per_request,
        energy_source=row.energy_source,
        choices=row.choices,
        dispatch_error_p99_s=result.dispatch_error_p99_s,
    )


def _print(console: Console, rows: Sequence[Row]) -> None:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("router", no_wrap=True)
    names = ("correct/s", "in time", "accuracy", "p50", "p99", "J/answer", "choices %")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(_short(row.router)),
            f"{row.correct_in_time_per_s:.1f}",
            f"{row.in_time_share:.1%}",
            f"{row.accuracy:.2%}",
            f"{1e3 * row.latency_p50_s:.0f} ms",
            f"{1e3 * row.latency_p99_s:.0f} ms",
            f"{row.energy_j_per_example:.3f}",
            " ".join(f"{100 * share:.0f}" for share in row.choices.values()),
        )
    console.print(table)
    first, last = rows[0], rows[-1]
    if len(rows) > 1 and first.correct_in_time_per_s > 0:
        times = last.correct_in_time_per_s / first.correct_in_time_per_s
        ours, theirs = _short(last.router), _short(first.router)
        console.print(
            f"[bold]{ours} gave {times:.1f} × the correct answers in time of {theirs}[/bold], "
            f"each answer at {last.energy_j_per_example / first.energy_j_per_example:.0%} of the energy",
            highlight=False,
        )


def _explain(console: Console, rows: Sequence[Row], out: Path) -> None:
    """Say what the columns mean, and where everything is."""
    console.print(
        f"accuracy: {rows[0].accuracy_source}; energy: above idle over answers, so work on dropped "
        f"ones counts too, {rows[0].energy_source}; choices: share of segments at "
        f"{', '.join(rows[0].choices)}\n"
        f"written: {out}/ (run.json, summary.json, comparison.json, plot.png, and a folder of "
        "event logs per router)",
        highlight=False,
    )


def _short(router: str) -> str:
    """Call the default router by its plain name."""
    return SERVING.partition(":")[0] if router == SERVING else router


def _log_folders(routers: Sequence[str]) -> list[str]:
    """Name the folders of the routers' event logs: 'goal' for 'goal:in_time=0.7', 'goal-2' for the next."""
    plain = [Path(spec.partition("[")[0]).name.replace(".py:", "-").partition(":")[0] for spec in routers]
    earlier = [plain[:number].count(name) for number, name in enumerate(plain)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(plain, earlier, strict=True)]
