"""`slim demo`: the embedded cluster under bursts that random routing cannot hold, first random, then ours."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.cli.options import AsJson, GoalText, Seed, need, with_options
from slimsched.cli.serving.scenario import (
    ArrivalsName,
    Data,
    LiveScenarioOptions,
    LoadOptions,
    RouterList,
    describe,
    examples_of,
    write_folder,
)
from slimsched.core.config import Factor, Milliseconds, RunSeconds
from slimsched.dashboard.pictures import plot_runs
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.options import SERVING
from slimsched.serving.routers.registry import check_goal, check_reach, split_specs
from slimsched.serving.scenario.files import ChosenScenario, RunSetting
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.run_folder import make_folder

if TYPE_CHECKING:
    from slimsched.serving.measure.live_runs import LiveResult


class DemoOptions(Struct, frozen=True, kw_only=True):
    """What to run, and where to leave it."""

    routers: RouterList = f"random,{SERVING}"
    goal: GoalText = None
    load: Annotated[Factor, "Mean rate, as a multiple of what random routing can hold."] = 1.5
    arrivals: ArrivalsName = "fitted"
    seconds: Annotated[RunSeconds, "Length of each run."] = 20.0
    deadline_ms: Annotated[Milliseconds, "Deadline of each request."] = 500.0
    data: Data = None
    out: Annotated[Path, "Folder for the report."] = Path("runs/demo")
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
    specs = demo.specs()
    load = LoadOptions(arrivals=demo.arrivals, seconds=demo.seconds, deadline_ms=demo.deadline_ms)
    chosen = load.apply(scenario.read(demo.goal))
    chosen = chosen.for_clients(chosen.scenario.gateway.queue_s)
    rate_per_s = demo.load * random_holds_per_s(chosen.scenario.cluster)
    chosen = replace(chosen, scenario=chosen.scenario.with_load(rate_per_s=rate_per_s))
    check_reach(specs, chosen.scenario.cluster)
    examples = examples_of(chosen.scenario.cluster.models, demo.data)
    kind = describe(examples)
    console = Console(stderr=True)
    _announce(console, chosen.scenario, demo, kind)
    make_folder(demo.out)
    results = []
    for spec, folder in zip(specs, _log_folders(specs), strict=True):
        setting = chosen.setting(spec, demo.seed, for_clients=True)
        with console.status(f"{_short(spec)} is under load for {demo.seconds:g} s", spinner="line"):
            results.append(_run(chosen.scenario, setting, demo.out / folder, examples))
    rows = [_row(result) for result in results]
    _write(demo, chosen, rows, [result.trace for result in results])
    if as_json:
        print(json.dumps({"examples": kind, "runs": rows, "folder": str(demo.out)}, indent=1))
    else:
        _print(Console(), rows)
        _explain(Console(soft_wrap=True), rows, demo.out)


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


def _announce(console: Console, scenario: Scenario, demo: DemoOptions, kind: str) -> None:
    """Say what is about to run."""
    shape = "arrivals fitted to a real trace" if demo.arrivals == "fitted" else f"{demo.arrivals} arrivals"
    console.print(
        f"{scenario.description or scenario.name}; {kind}; {shape}, "
        f"{scenario.load.rate_per_s:.0f} requests/s on average, {demo.load:g} × what random routing "
        f"can hold; deadline {demo.deadline_ms:g} ms",
        highlight=False,
    )


def _run(
    scenario: Scenario, setting: RunSetting, folder: Path, examples: Sequence[ExampleSet]
) -> "LiveResult":
    """Run one router live; every process leaves its event log in the folder."""
    from slimsched.serving.live.engine import RunLog
    from slimsched.serving.live.wire import run
    from slimsched.serving.measure.live_runs import run_live

    for old in make_folder(folder).glob("events-*.jsonl.gz"):
        old.unlink()
    with RunLog(folder, setting, len(scenario.cluster)) as log:
        return run(run_live(scenario, setting.router, examples, seed=setting.seed, log=log))


def _write(
    demo: DemoOptions, chosen: ChosenScenario, rows: Sequence[dict[str, Any]], traces: Sequence[Trace]
) -> None:
    """Leave the figures and the picture in the folder."""
    scenario = chosen.scenario
    summaries = [to_builtins(trace.summary) for trace in traces]
    write_folder(demo.out, chosen, traces, summaries, seed=demo.seed)
    (demo.out / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n")
    title = f"{scenario.name}: {demo.arrivals} arrivals at {demo.load:g} × what random can hold"
    plot_runs(traces, scenario.cluster.models, title, demo.out / "plot.png")


def _row(result: "LiveResult") -> dict[str, Any]:
    """Return one line of the comparison; accuracy is of answered requests, rates are requests per second."""
    summary = result.trace.summary
    accuracy, source = result.accuracy, "counted on the examples' labels"
    if accuracy is None:
        accuracy = summary.accuracy_prior
        source = "of the plans served, from the measured table (made-up examples have no labels)"
    row: dict[str, Any] = to_builtins(summary)
    return row | {
        "accuracy": accuracy,
        "accuracy_source": source,
        "correct_in_time_per_s": accuracy * summary.goodput_per_s,
        "dispatch_error_p99_s": result.dispatch_error_p99_s,
    }


def _print(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("router", no_wrap=True)
    names = ("correct/s", "in time", "accuracy", "p50", "p99", "J/answer", "choices %")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            escape(_short(row["router"])),
            f"{row['correct_in_time_per_s']:.1f}",
            f"{row['slo_attainment']:.1%}",
            f"{row['accuracy']:.2%}",
            f"{1e3 * row['latency_p50_s']:.0f} ms",
            f"{1e3 * row['latency_p99_s']:.0f} ms",
            f"{row['energy_j_per_request']:.3f}",
            " ".join(f"{100 * share:.0f}" for share in row["choices"].values()),
        )
    console.print(table)
    first, last = rows[0], rows[-1]
    if len(rows) > 1 and first["correct_in_time_per_s"] > 0:
        times = last["correct_in_time_per_s"] / first["correct_in_time_per_s"]
        ours, theirs = _short(last["router"]), _short(first["router"])
        energy = last["energy_j_per_request"] / first["energy_j_per_request"]
        console.print(
            f"[bold]{ours} gave {times:.1f} × the correct answers in time of {theirs}[/bold], "
            f"each answer at {energy:.0%} of the energy",
            highlight=False,
        )


def _explain(console: Console, rows: Sequence[dict[str, Any]], out: Path) -> None:
    """Say what the columns mean, and where everything is."""
    console.print(
        f"accuracy: {rows[0]['accuracy_source']}; energy: above idle over answers, so work on dropped "
        f"ones counts too, {rows[0]['energy_source']}; choices: share of segments at "
        f"{', '.join(rows[0]['choices'])}\n"
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
