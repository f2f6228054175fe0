"""Commands that simulate serving: `slim simulate`, `slim compare` and `slim bound`."""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, GoalText, Seed, file_to_write, with_options
from slimsched.cli.progress import count_bar
from slimsched.cli.serving.scenario import (
    ROUTER,
    ROUTERS,
    Data,
    FaultOptions,
    LoadOptions,
    Out,
    Plot,
    PoolOptions,
    Rate,
    ScenarioOptions,
    Seeds,
    Workers,
    run_in_turn,
    write_folder,
)
from slimsched.cli.table import print_runs
from slimsched.core.config import Amount, ConfigError, Seconds
from slimsched.core.log import LogWriter, Observer, log_path
from slimsched.dashboard.pictures import plot_runs
from slimsched.serving.domain.cluster import AUTOSCALER_NAME, Cluster
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.gateway.bounds import FluidOptimum, capacity_per_s, fluid_optimum, says_sure
from slimsched.serving.gateway.messages import SERVED_QUEUE_S
from slimsched.serving.routers.registry import check_goal, check_reach, split_specs
from slimsched.serving.scenario.files import ChosenScenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import Compared, compare, gather, simulate
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.run_folder import make_folder

# -- `slim bound`: the best accuracy any router could give at a load.


@with_options
def bound_command(
    scenario: ScenarioOptions,
    rate: Rate = None,
    power: Annotated[Amount | None, "Power budget of the whole cluster, in watts above idle."] = None,
    as_json: AsJson = False,
) -> None:
    """Print the fluid bounds on accuracy, and how much the cluster can carry at each choice.

    The first bound holds for routers that do not look at examples; the second for routers that stop when the
    model is sure and go on with a wider plan when it is not.

    Examples:

      slim bound --scenario paper

      slim bound --scenario edge-12 --rate 4000 --power 150 --json
    """
    bound = _bound_of(LoadOptions(rate=rate).apply(scenario.read()).scenario, power)
    if as_json:
        print(json.dumps(bound, indent=1))
    else:
        _print_bound(Console(), bound)


def _bound_of(scenario: Scenario, power_w: float | None) -> dict[str, Any]:
    """Solve the fluid problem at the scenario's rate; say what its cluster can carry."""
    cluster, rate_per_s, sure = scenario.cluster, scenario.load.rate_per_s, None
    best = fluid_optimum(cluster, rate_per_s, shares=scenario.shares, active_power_w=power_w)
    if says_sure(cluster):
        sure = fluid_optimum(cluster, rate_per_s, shares=scenario.shares, active_power_w=power_w, sure=True)
    return {
        "scenario": scenario.name,
        "rate_per_s": rate_per_s,
        "accuracy": best.accuracy,
        "served_share": best.served_share,
        "active_power_w": best.power_w,
        "accuracies": {model.name: best.accuracies[model.number] for model in cluster.models},
        "capacity_per_s": _capacities(cluster),
        "mix_per_s": _mix(cluster, best),
        "sure_accuracy": None if sure is None else sure.accuracy,
        "sure_further": None if sure is None else sure.further,
    }


def _capacities(cluster: Cluster) -> dict[str, float]:
    """What the cluster carries by plans that stay at one choice, alone on it."""
    capacities: dict[str, float] = {}
    for model in cluster.models:
        prefix = f"{model.name}: " if len(cluster.models) > 1 else ""
        for choice in model.tree.choices[0]:
            plan = model.tree.stay((int(choice),))
            names = {model.spec.segments[at][one] for at, one in enumerate(plan)}
            text = names.pop() if len(names) == 1 else model.spec.text(plan)
            capacities[prefix + text] = capacity_per_s(cluster, plan, model.number)
    return capacities


def _mix(cluster: Cluster, best: FluidOptimum) -> dict[str, float]:
    """The five plans that the optimum serves most."""
    rates = {
        (f"{model.name}: " if len(cluster.models) > 1 else "") + model.spec.text(plan): float(rate)
        for model, by_plan in zip(cluster.models, best.rates_per_s, strict=True)
        for plan, rate in zip(model.tree.plans, by_plan, strict=True)
        if rate > 1e-6
    }
    return dict(sorted(rates.items(), key=lambda pair: -pair[1])[:5])


def _print_bound(console: Console, bound: dict[str, Any]) -> None:
    console.print(
        f"{bound['scenario']} at {bound['rate_per_s']:g} requests per second: accuracy at most "
        f"{100 * bound['accuracy']:.2f} %, {100 * bound['served_share']:.1f} % served, "
        f"{bound['active_power_w']:.0f} W above idle"
    )
    if bound["sure_accuracy"] is not None:
        console.print(
            f"This holds for routers that do not look at examples. Stopping when sure: at most "
            f"{100 * bound['sure_accuracy']:.2f} %, with a further plan for "
            f"{100 * bound['sure_further']:.0f} % of requests"
        )
    if len(bound["accuracies"]) > 1:
        parts = ", ".join(f"{name} {100 * value:.2f} %" for name, value in bound["accuracies"].items())
        console.print(f"by model: {parts}")
    mix = Table("plan", "requests/s", title="What the optimum serves", title_justify="left")
    for plan, rate_per_s in bound["mix_per_s"].items():
        mix.add_row(plan, f"{rate_per_s:,.0f}")
    console.print(mix)
    capacity = Table(
        "choice", "capacity, requests/s", title="What the cluster can carry", title_justify="left"
    )
    for choice, rate_per_s in bound["capacity_per_s"].items():
        capacity.add_row(choice, f"{rate_per_s:,.0f}")
    console.print(capacity)


# -- `slim compare`: several routers on one scenario, beside the fluid bound.

COMPARED = "random,round-robin,jsq,power-of-two,sed,speed-jsq,drift-plus-penalty,slackfit,lp,goal"
"""The routers that are compared unless others are named."""


class CompareOptions(Struct, frozen=True, kw_only=True):
    """What to compare, and how often."""

    routers: Annotated[str | None, ROUTERS] = None
    goal: GoalText = None
    warmup: Annotated[Seconds, "Seconds at the start that all figures leave out."] = 0.0
    seed: Seed = 0
    seeds: Seeds = 1
    workers: Workers = 0
    live: Annotated[
        bool, "Run on real servers of this machine, router after router, as often as --seeds says."
    ] = False
    data: Data = None
    plot: Plot = None
    out: Out = None

    def specs(self) -> list[str]:
        """List the routers to compare: the classical ones and `goal`, unless others are named."""
        specs = split_specs(COMPARED if self.routers is None else self.routers)
        check_goal(self.goal, specs)
        return specs


@with_options
def compare_command(
    scenario: ScenarioOptions,
    load: LoadOptions,
    compared: CompareOptions,
    pool: PoolOptions,
    as_json: AsJson = False,
) -> None:
    """Compare routers on a scenario; the classical routers and goal if none are named.

    Examples:

      slim compare --scenario paper

      slim compare --routers random,sed,lp --seconds 10 --warmup 2 --seeds 5 --json

      slim compare --routers "drift-plus-penalty,goal\\[p99<=80ms],goal\\[accuracy>=75, min energy]"

      slim compare --routers sed,my_router.py:MyRouter:speed=3 --seconds 10

      slim compare --arrivals trace.csv.gz --rate 5000 --seconds 30 --plot compare.png

      slim compare --seconds 10 --out runs/routers && slim report runs/routers

      slim compare --live --scenario laptop --rate 200 --seconds 10 --routers sed,goal
    """
    chosen = load.apply(scenario.read(compared.goal))
    chosen = replace(chosen, scenario=chosen.scenario.with_load(warmup_s=compared.warmup))
    go = _run_live if compared.live else _run_all
    runs = go(chosen, compared, pool, quiet=as_json)
    if compared.plot is not None:
        title = f"{chosen.scenario.name}, seed {compared.seed}"
        plot_runs([one.trace for one in runs], chosen.scenario.cluster.models, title, compared.plot)
    rows = [{**msgspec.to_builtins(one.summary), "ci95": one.ci95} for one in runs]
    if compared.out is not None:
        traces = [one.trace for one in runs]
        write_folder(
            make_folder(compared.out), chosen, traces, rows, seed=compared.seed, seeds=compared.seeds
        )
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        notes, written = _notes_of_comparison(chosen.scenario, runs), (compared.plot, compared.out)
        print_runs(Console(), chosen.scenario, runs, notes, written, live=compared.live)


def _run_all(
    chosen: ChosenScenario, compared: CompareOptions, pool: PoolOptions, *, quiet: bool
) -> list[Compared]:
    specs = compared.specs()
    check_reach(specs, chosen.scenario.cluster)
    with count_bar(f"simulating {chosen.scenario.name}", len(specs) * compared.seeds, quiet=quiet) as bar:
        return compare(
            chosen.scenario,
            specs,
            seed=compared.seed,
            seeds=compared.seeds,
            workers=compared.workers or os.cpu_count() or 1,
            progress=lambda router: bar.update(bar.task_ids[0], advance=1, description=f"{router} done"),
            pool=pool.open(),
        )


def _run_live(
    chosen: ChosenScenario, compared: CompareOptions, pool: PoolOptions, *, quiet: bool
) -> list[Compared]:
    """Run the routers in turn on real servers; every other round backwards."""
    if pool.engine != "local" or compared.warmup:
        raise ConfigError(
            "--live runs on servers of this machine, from the first request: leave out --engine and --warmup"
        )
    specs, scenario = compared.specs(), chosen.scenario
    check_reach(specs, scenario.cluster)
    idle_w = max(profile.idle_w for profile in scenario.cluster.profiles)
    with count_bar(f"serving {scenario.name}", len(specs) * compared.seeds, quiet=quiet) as bar:
        done = iter(range(-1, len(specs) * compared.seeds))
        rows = run_in_turn(
            scenario,
            specs,
            seed=compared.seed,
            rounds=compared.seeds,
            data=compared.data,
            progress=lambda what: bar.update(bar.task_ids[0], completed=max(0, next(done)), description=what),
        )
    return [gather([row.measured(idle_w) for row in rows if row.router == spec]) for spec in specs]


def _notes_of_comparison(scenario: Scenario, runs: list[Compared]) -> list[str]:
    """Say under which load, by which table and beside which bounds routers were compared."""
    load, first = scenario.load, runs[0].summary
    sure = max(one.summary.sure_bound_accuracy for one in runs)
    deadline = f", deadline {load.deadline_s:g} s" if load.deadline_s < NEVER_S else ""
    notes = [
        f"{load.description}{deadline}; accuracy table '{scenario.cluster.models[0].quality.name}', "
        f"fluid bound {100 * first.bound_accuracy:.2f} %; energy {first.energy_source}"
    ]
    if sure:
        notes.append(
            f"The fluid bound holds for routers that do not look at examples; stopping when sure, "
            f"{100 * sure:.2f} % is possible."
        )
    return notes


# -- `slim simulate`: one router on one scenario.


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """What to simulate, and what to leave behind."""

    router: Annotated[str | None, ROUTER] = None
    goal: GoalText = None
    seed: Seed = 0
    drain: Annotated[bool, "Continue until every request is answered."] = False
    as_served: Annotated[bool, "Refuse and drop what cannot be in time, as slim serve does."] = False
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
def simulate_command(
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
    chosen = load.apply(scenario.read(simulated.goal))
    check_reach([simulated.spec], chosen.scenario.cluster)
    chosen = replace(chosen, scenario=chosen.scenario.with_faults(faults.read()))
    if simulated.as_served:
        chosen = chosen.for_clients(chosen.scenario.gateway.queue_s or SERVED_QUEUE_S)
    steps = ScaleSteps()
    trace = _run_one(chosen, simulated, steps, quiet=as_json)
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
        notes = _notes_of_run(chosen.scenario, trace, steps)
        written = simulated.log, simulated.plot, simulated.out
        print_runs(Console(), chosen.scenario, [gather([trace])], notes, written)


class ScaleSteps:
    """An observer that keeps what the autoscaler did."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Note the steps of the autoscaler."""
        if machine == AUTOSCALER_NAME:
            self.taken += [{"at_s": now_s, **msgspec.to_builtins(step)} for step in commands]


def _run_one(chosen: ChosenScenario, simulated: SimulateOptions, steps: ScaleSteps, *, quiet: bool) -> Trace:
    """Simulate, writing the logs and the folder that were asked for."""
    scenario = chosen.scenario
    observers: list[Observer] = [] if scenario.autoscale is None else [steps]
    setting = chosen.setting(simulated.spec, simulated.seed, for_clients=simulated.as_served)
    header = setting.header()
    with ExitStack() as stack:
        if simulated.log is not None:
            observers.append(stack.enter_context(LogWriter(simulated.log, header)))
        if simulated.out is not None:
            events = log_path(make_folder(simulated.out))
            observers.append(stack.enter_context(LogWriter(events, header)))
        if not quiet:
            text = f"simulating {scenario.load.seconds:g} s of {scenario.name}"
            stack.enter_context(Console(stderr=True).status(text))
        trace = simulate(
            scenario,
            simulated.spec,
            seed=simulated.seed,
            drain=simulated.drain,
            observers=observers,
            record=simulated.out is not None,
        )
    if simulated.out is not None:
        rows = [msgspec.to_builtins(trace.summary)]
        write_folder(simulated.out, chosen, [trace], rows, seed=simulated.seed)
    return trace


def _notes_of_run(scenario: Scenario, trace: Trace, steps: ScaleSteps) -> list[str]:
    """Say under which load a router ran, what became of the requests, and what the autoscaler did."""
    row = trace.summary
    notes = [
        scenario.load.description,
        f"arrived {row.arrived}, answered {row.completed}, dropped {row.dropped}, "
        f"unfinished {row.unfinished}, lost {row.lost}, answered twice {row.duplicates}; "
        f"mean batch {row.batch_mean:.1f}; {1e3 * row.energy_j_per_request:.3g} mJ per answer above idle, "
        f"energy {row.energy_source}; {row.requests_per_wall_s:,.0f} simulated requests per second",
    ]
    return notes + [
        f"autoscaler: {step['servers']} servers from {step['at_s']:.2f} s on, {step['reason']}"
        for step in steps.taken
    ]
