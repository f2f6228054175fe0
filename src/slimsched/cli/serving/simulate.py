"""`slim simulate`: one router on one scenario."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.output_path import file_to_write
from slimsched.cli.serving.caveat import caveats
from slimsched.cli.serving.scenario import (
    ROUTER,
    Choice,
    FaultOptions,
    GoalText,
    LoadOptions,
    Out,
    Plot,
    ScenarioOptions,
    arrival_s,
    check_goal,
    check_reach,
    goal_by_which,
)
from slimsched.cli.table import print_summaries
from slimsched.core.log import LogWriter, Observer, log_path
from slimsched.serving.domain.cluster import AUTOSCALER_NAME
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.gateway_options import SERVED_QUEUE_S
from slimsched.serving.telemetry.live_view import Recorder
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.pictures import plot_runs
from slimsched.serving.telemetry.run_folder import (
    BoundCurve,
    energy_bound,
    make_folder,
    trace_arrays,
    write_run,
)


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """What to simulate, and what to leave behind."""

    router: Annotated[str | None, ROUTER] = None
    goal: GoalText = None
    seed: Seed = 0
    drain: Annotated[bool, typer.Option("--drain", help="Continue until every request is answered.")] = False
    as_served: Annotated[
        bool,
        typer.Option("--as-served", help="Refuse and drop what cannot be in time, as slim serve does."),
    ] = False
    log: Annotated[
        Path | None,
        typer.Option("--log", callback=file_to_write, help="Write the event log (.jsonl or .jsonl.gz)."),
    ] = None
    plot: Plot = None
    out: Out = None

    @property
    def spec(self) -> str:
        """The router: `sed` if none is named, `goal` if a goal is given."""
        return ("sed" if self.goal is None else "goal") if self.router is None else self.router


@with_options
def command(
    scenario: ScenarioOptions,
    load: LoadOptions,
    faults: FaultOptions,
    simulated: SimulateOptions,
    as_json: AsJson = False,
) -> None:
    """Simulate one router on a scenario; the router is sed, or goal where a goal is given.

    Examples:

      slim simulate --scenario paper --router lp

      slim simulate --router drift-plus-penalty:v=8 --rate 5000 --seconds 10 --plot run.png

      slim simulate --goal "accuracy>=75, p99<=80ms, min energy"

      slim simulate --kill server-0@10s --restore server-0@20s --drain --json

      slim simulate --scenario laptop --router goal:in_time=0.7 --rate 4000 --deadline-ms 500 --as-served

      slim simulate --router lp --seconds 10 --out runs/lp && slim report runs/lp
    """
    check_goal(simulated.goal, [simulated.spec])
    chosen = scenario.read(simulated.goal).under(load)
    check_reach([simulated.spec], chosen.scenario)
    chosen = replace(chosen, scenario=chosen.scenario.with_faults(faults.read()))
    if simulated.as_served:
        chosen = chosen.for_clients(chosen.scenario.gateway.queue_s or SERVED_QUEUE_S)
    steps = ScaleSteps()
    trace = _run(chosen, simulated, steps, quiet=as_json)
    if simulated.plot is not None:
        plot_runs(
            [trace],
            chosen.scenario.cluster.models,
            f"{chosen.scenario.name}, seed {simulated.seed}",
            simulated.plot,
        )
    if as_json:
        scaling = {} if chosen.scenario.autoscale is None else {"scaling": steps.taken}
        print(msgspec.json.encode(msgspec.to_builtins(trace.summary) | scaling).decode())
    else:
        _print(Console(), chosen, trace, steps, written=(simulated.log, simulated.plot, simulated.out))


class ScaleSteps:
    """An observer that keeps what the autoscaler did."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Note the steps of the autoscaler."""
        if machine == AUTOSCALER_NAME:
            self.taken += [{"at_s": now_s, **msgspec.to_builtins(step)} for step in commands]


def _run(chosen: Choice, simulated: SimulateOptions, steps: ScaleSteps, *, quiet: bool) -> Trace:
    """Simulate, writing the logs and the folder that were asked for."""
    scenario = chosen.scenario
    observers: list[Observer] = [] if scenario.autoscale is None else [steps]
    recorder = None
    setting = chosen.setting(simulated.spec, simulated.seed, for_clients=simulated.as_served)
    header = setting.header()
    with ExitStack() as stack:
        if simulated.log is not None:
            observers.append(stack.enter_context(LogWriter(simulated.log, header)))
        if simulated.out is not None:
            events = log_path(make_folder(simulated.out))
            observers.append(stack.enter_context(LogWriter(events, header)))
            curve = BoundCurve(scenario.cluster, scenario.shares)
            recorder = Recorder(
                scenario.cluster,
                simulated.spec,
                seconds=scenario.load.seconds,
                bound=curve.accuracy,
                sure_bound=curve.sure_accuracy,
            )
            observers.append(recorder)
        if not quiet:
            text = f"simulating {scenario.load.seconds:g} s of {scenario.name}"
            stack.enter_context(Console(stderr=True).status(text))
        trace = simulate(
            scenario, simulated.spec, seed=simulated.seed, drain=simulated.drain, observers=observers
        )
    if simulated.out is not None and recorder is not None:
        _write(simulated.out, chosen, simulated.seed, trace, recorder)
    return trace


def _write(out: Path, chosen: Choice, seed: int, trace: Trace, recorder: Recorder) -> None:
    summary = trace.summary
    arrays = trace_arrays([trace], arrival_s(chosen.scenario, seed))
    arrays |= energy_bound(
        chosen.scenario.cluster, max(1, summary.arrived) / summary.seconds, chosen.scenario.shares
    )
    write_run(out, chosen.about(seed), [msgspec.to_builtins(summary)], arrays, recorder.frames)


def _print(
    console: Console, chosen: Choice, trace: Trace, steps: ScaleSteps, *, written: tuple[Path | None, ...]
) -> None:
    row = trace.summary
    scenario = chosen.scenario
    goal = goal_by_which(row.router, scenario)
    print_summaries(console, [row], f"{scenario.name}: {scenario.description}", goals=[(goal, [row])])
    console.print(f"{scenario.load.description}")
    console.print(
        f"arrived {row.arrived}, answered {row.completed}, dropped {row.dropped}, "
        f"unfinished {row.unfinished}, lost {row.lost}, answered twice {row.duplicates}; "
        f"mean batch {row.batch_mean:.1f}; {1e3 * row.energy_j_per_request:.3g} mJ per answer above idle, "
        f"energy {row.energy_source}; {row.requests_per_wall_s:,.0f} simulated requests per second"
    )
    for caveat in caveats([row]):
        console.print(caveat, markup=False)
    for step in steps.taken:
        console.print(f"autoscaler: {step['servers']} servers from {step['at_s']:.2f} s on, {step['reason']}")
    for path in written:
        if path is not None:
            console.print(f"written: {path}")
