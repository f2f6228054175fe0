"""`slim demo`: the embedded cluster under bursts that random routing cannot hold, first random, then ours."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from msgspec import Struct, to_builtins
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slimsched.cli.serving import scenario as options
from slimsched.cli.serving.event_loop import run
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.registry import SERVING, make_router
from slimsched.serving.routing.commands import Answer, Drop
from slimsched.serving.routing.events import RequestsArrived, TelemetryReceived
from slimsched.serving.telemetry.bound_curve import energy_bound
from slimsched.serving.telemetry.run_folder import make_folder, trace_arrays, write_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slimsched.serving.execution.live.run import LiveResult


class Row(Struct, frozen=True, kw_only=True):
    """What is compared; accuracy is of answered images, rates are images a second."""

    router: str
    arrived: int
    answered: int
    accuracy: float
    accuracy_source: str
    correct_in_time_per_s: float
    in_time_share: float
    latency_p50_s: float
    latency_p99_s: float
    energy_j_per_image: float
    energy_source: str
    widths: dict[str, float]
    dispatch_error_p99_s: float


def command(
    scenario: options.ScenarioName = "laptop",
    config: options.ConfigFile = None,
    routers: Annotated[
        str, typer.Option("--routers", help="Comma-separated; each has its own run.")
    ] = f"random,{SERVING}",
    load: Annotated[
        float, typer.Option("--load", help="Mean rate as a multiple of what random routing can hold.")
    ] = 1.5,
    arrivals: Annotated[
        str,
        typer.Option(
            "--arrivals",
            help="fitted (to a real trace), poisson, bursty, diurnal, step, or the path of a trace file.",
        ),
    ] = "fitted",
    seconds: Annotated[float, typer.Option("--seconds", help="Length of each run.")] = 20.0,
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", help="Deadline of each image.")] = 500.0,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with CIFAR-100; else SLIM_DATA.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("runs/demo"),
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
) -> None:
    """Start servers of unequal speed on this machine and send them more than random routing can hold.

    Same arrivals, same images, one run a router; about a minute. Nothing is left running.

    Examples:

      slim demo

      slim demo --seconds 10 --routers random,jsq,drift-plus-penalty,goal

      slim demo --arrivals trace.csv --json
    """
    from slimsched.serving.telemetry.plots import plot_runs

    chosen, raw, path = options.choose(scenario, config, None, arrivals, None, seconds, deadline_ms)
    holds_per_s = random_holds_per_s(chosen.cluster)
    chosen = chosen.for_clients().with_load(rate_per_s=load * holds_per_s)
    images, labels, kind = _images(data)
    console = Console(stderr=True)
    shape = "arrivals fitted to a real trace" if arrivals == "fitted" else f"{arrivals} arrivals"
    console.print(
        f"{chosen.description or chosen.name}; {kind}; {shape}, "
        f"{chosen.load.rate_per_s:.0f} images/s on average, {load:g} × what random routing can hold; "
        f"deadline {deadline_ms:g} ms",
        highlight=False,
    )
    beside = "" if config is None else str(path.parent.resolve())
    make_folder(out)
    rows, traces = [], []
    names = routers.split(",")
    for number, router in enumerate(names):
        setting = RunSetting(scenario=raw, beside=beside, router=router, seed=seed, for_clients=True)
        with LiveProgress(console, _short(router), chosen) as progress:
            found = _live(chosen, setting, _log_folder(out, router, names[:number]), images, labels, progress)
        rows.append(_row(found, labels is not None))
        traces.append(found.trace)
    about = options.about(chosen, _resolved(chosen, raw), seed)
    write_run(
        out,
        about,
        [to_builtins(trace.summary) for trace in traces],
        trace_arrays(traces, options.arrival_s(chosen, seed))
        | energy_bound(chosen.cluster, chosen.load.rate_per_s),
    )
    (out / "comparison.json").write_text(json.dumps(to_builtins(rows), indent=1) + "\n")
    plot_runs(
        traces, f"{chosen.name}: {arrivals} arrivals at {load:g} × what random can hold", out / "plot.png"
    )
    if as_json:
        print(json.dumps({"images": kind, "runs": to_builtins(rows), "folder": str(out)}, indent=1))
        return
    _print(Console(), rows)
    Console(soft_wrap=True).print(
        f"accuracy: {rows[0].accuracy_source}; energy: above idle over answered images, so work on dropped "
        f"ones counts too, {rows[0].energy_source}; widths: share of segments at "
        f"{', '.join(rows[0].widths)}\n"
        f"written: {out}/ (run.json, summary.json, comparison.json, plot.png, and a folder of "
        "event logs per router)",
        highlight=False,
    )


def random_holds_per_s(cluster: Cluster) -> float:
    """The rate at which the slowest server saturates under uniform random routing.

    It gets the share 1/n of every segment at any width: λ = n / max_i Σ_s mean_k work_i(k of s).
    """
    total_s = np.zeros(len(cluster))
    for segment in range(1 + max(key.segment for key in KEYS.values())):
        total_s += np.mean([cluster.work_s[k] for k in KEYS.values() if k.segment == segment], axis=0)
    return float(len(cluster) / total_s.max())


class LiveProgress:
    """An observer that shows how a run goes; plain lines where the output is no terminal."""

    def __init__(self, console: Console, router: str, scenario: Scenario) -> None:
        self._router, self._accuracy, self._console = router, scenario.cluster.accuracy, console
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
        """Take one entry of the log in."""
        if isinstance(event, TelemetryReceived) and self._began_s is not None:
            passed_s = min(self._seconds, now_s - self._began_s)
            self._bar.update(self._task, description=self._text(), completed=passed_s, total=self._seconds)
        elif isinstance(event, RequestsArrived):
            self._began_s = now_s if self._began_s is None else self._began_s
            self._arrived += len(event.requests)
        for command in commands:
            if isinstance(command, Answer):
                self._answered += len(command.requests)
                self._in_time += sum(now_s <= one.deadline_s for one in command.requests)
                self._worth += sum(self._accuracy.accuracy(one.widths) for one in command.requests)
            elif isinstance(command, Drop):
                self._dropped += len(command.requests)

    def _text(self) -> str:
        worth = f"{self._worth / self._answered:.1%}" if self._answered else "–"
        done = max(1, self._answered + self._dropped)
        return (
            f"{self._router:>10}: {self._arrived:5d} images, {self._in_time / done:6.1%} in time, "
            f"{self._dropped:4d} dropped, widths worth {worth}"
        )


def _images(data: Path | None) -> "tuple[NDArray[np.uint8], NDArray[np.int64] | None, str]":
    """Real test images where the user has them, generated ones where not."""
    from slimsched.cli.serving.images import test_images
    from slimsched.models.data import cifar

    folder = data or (Path(os.environ["SLIM_DATA"]) if "SLIM_DATA" in os.environ else None)
    if folder is not None and (data is not None or cifar.find(folder) is not None):
        return test_images(folder)
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8), None, "generated images"


def _live(
    chosen: Scenario,
    setting: RunSetting,
    folder: Path,
    images: "NDArray[np.uint8]",
    labels: "NDArray[np.int64] | None",
    progress: LiveProgress,
) -> "LiveResult":
    from slimsched.serving.execution.live.run import run_live
    from slimsched.serving.execution.live.run_log import RunLog

    router, seed = setting.router, setting.seed
    with RunLog(folder, setting, len(chosen.cluster)) as log:
        work = run_live(
            chosen, router, images, labels, seed=seed, observers=[progress], make=make_router, log=log
        )
        return run(work)


def _log_folder(out: Path, router: str, earlier: Sequence[str]) -> Path:
    """Make the folder of one router's event logs, without those of an earlier demo."""
    name = router.partition(":")[0].replace("/", "-")
    same = sum(one.partition(":")[0] == router.partition(":")[0] for one in earlier)
    folder = make_folder(out / (f"{name}-{same + 1}" if same else name))
    for log in folder.glob("events-*.jsonl.gz"):
        log.unlink()
    return folder


def _row(found: "LiveResult", labelled: bool) -> Row:
    row = found.trace.summary
    accuracy = found.accuracy if found.accuracy is not None else row.accuracy_prior
    return Row(
        router=row.router,
        arrived=row.arrived,
        answered=row.completed,
        accuracy=accuracy,
        accuracy_source="counted on the images' labels"
        if labelled
        else "of the widths served, from the measured table (generated images have no labels)",
        correct_in_time_per_s=accuracy * row.goodput_per_s,
        in_time_share=row.slo_attainment,
        latency_p50_s=row.latency_p50_s,
        latency_p99_s=row.latency_p99_s,
        energy_j_per_image=row.energy_j_per_request,
        energy_source=row.energy_source,
        widths=row.widths,
        dispatch_error_p99_s=found.dispatch_error_p99_s,
    )


def _resolved(chosen: Scenario, raw: dict[str, Any]) -> dict[str, Any]:
    """The scenario file as it was really run."""
    promised = {"order": "deadline", "early_drop": True, "priorities": True}
    return {
        **raw,
        "load": to_builtins(chosen.load),
        "gateway": to_builtins(chosen.gateway),
        "scheduler": {**raw.get("scheduler", {}), **promised},
    }


def _print(console: Console, rows: Sequence[Row]) -> None:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("router", no_wrap=True)
    names = ("correct/s", "in time", "accuracy", "p50", "p99", "J/image", "widths %")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            _short(row.router),
            f"{row.correct_in_time_per_s:.1f}",
            f"{row.in_time_share:.1%}",
            f"{row.accuracy:.2%}",
            f"{1e3 * row.latency_p50_s:.0f} ms",
            f"{1e3 * row.latency_p99_s:.0f} ms",
            f"{row.energy_j_per_image:.3f}",
            " ".join(f"{100 * share:.0f}" for share in row.widths.values()),
        )
    console.print(table)
    first, last = rows[0], rows[-1]
    if len(rows) > 1 and first.correct_in_time_per_s > 0:
        times = last.correct_in_time_per_s / first.correct_in_time_per_s
        ours, theirs = _short(last.router), _short(first.router)
        console.print(
            f"[bold]{ours} gave {times:.1f} × the correct answers in time of {theirs}[/bold], "
            f"each image at {last.energy_j_per_image / first.energy_j_per_image:.0%} of the energy",
            highlight=False,
        )


def _short(router: str) -> str:
    """What serves by default goes by its plain name."""
    return SERVING.partition(":")[0] if router == SERVING else router
