"""`slim compare`: several routers on one scenario, beside the fluid bound."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.progress import count_bar
from slimsched.cli.serving.caveat import caveats
from slimsched.cli.serving.engine import PoolOptions
from slimsched.cli.serving.scenario import (
    ROUTERS,
    Choice,
    Data,
    GoalText,
    LoadOptions,
    Out,
    Plot,
    ScenarioOptions,
    Seeds,
    Workers,
    arrival_s,
    check_goal,
    check_reach,
    goal_by_which,
)
from slimsched.cli.table import print_summaries
from slimsched.core.config import ConfigError, Seconds
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.execution.compared import Compared, gather
from slimsched.serving.execution.simulated.comparison import compare
from slimsched.serving.routing.registry import split_specs
from slimsched.serving.telemetry.pictures import plot_runs
from slimsched.serving.telemetry.run_folder import energy_bound, make_folder, trace_arrays, write_run

COMPARED = "random,round-robin,jsq,power-of-two,sed,speed-jsq,drift-plus-penalty,slackfit,lp,goal"
"""The routers that are compared unless others are named."""


class CompareOptions(Struct, frozen=True, kw_only=True):
    """What to compare, and how often."""

    routers: Annotated[str | None, ROUTERS] = None
    goal: GoalText = None
    warmup: Annotated[
        Seconds, typer.Option("--warmup", help="Seconds at the start that all figures leave out.")
    ] = 0.0
    seed: Seed = 0
    seeds: Seeds = 1
    workers: Workers = 0
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Run on real servers of this machine, router after router, as often as --seeds says.",
        ),
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
def command(
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
    chosen = scenario.read(compared.goal).under(load)
    chosen = replace(chosen, scenario=chosen.scenario.with_load(warmup_s=compared.warmup))
    go = _run_live if compared.live else _run
    runs = go(chosen, compared, pool, quiet=as_json)
    if compared.plot is not None:
        title = f"{chosen.scenario.name}, seed {compared.seed}"
        plot_runs([one.trace for one in runs], chosen.scenario.cluster.models, title, compared.plot)
    rows = [{**msgspec.to_builtins(one.summary), "ci95": one.ci95} for one in runs]
    if compared.out is not None:
        _write(compared.out, chosen, compared, runs, rows)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        _print(Console(), chosen, runs, live=compared.live, written=(compared.plot, compared.out))


def _run(chosen: Choice, compared: CompareOptions, pool: PoolOptions, *, quiet: bool) -> list[Compared]:
    specs = compared.specs()
    check_reach(specs, chosen.scenario)
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


def _run_live(chosen: Choice, compared: CompareOptions, pool: PoolOptions, *, quiet: bool) -> list[Compared]:
    """Run the routers in turn on real servers; every other round backwards."""
    if pool.engine != "local" or compared.warmup:
        raise ConfigError(
            "--live runs on servers of this machine, from the first request: leave out --engine and --warmup"
        )
    from slimsched.cli.serving.live_runs import run_in_turn

    specs, scenario = compared.specs(), chosen.scenario
    check_reach(specs, scenario)
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


def _write(
    out: Path, chosen: Choice, compared: CompareOptions, runs: list[Compared], rows: list[dict[str, Any]]
) -> None:
    arrays = trace_arrays([one.trace for one in runs], arrival_s(chosen.scenario, compared.seed))
    first = runs[0].trace.summary
    arrays |= energy_bound(
        chosen.scenario.cluster, max(1, first.arrived) / first.seconds, chosen.scenario.shares
    )
    write_run(make_folder(out), chosen.about(compared.seed, compared.seeds), rows, arrays)


def _print(
    console: Console, chosen: Choice, runs: list[Compared], *, live: bool, written: tuple[Path | None, ...]
) -> None:
    scenario, load = chosen.scenario, chosen.scenario.load
    first = runs[0].summary
    sure = max(one.summary.sure_bound_accuracy for one in runs)
    print_summaries(
        console,
        [one.summary for one in runs],
        f"{scenario.name}{', live' if live else ''}: {scenario.description}",
        [one.ci95 for one in runs],
        [(goal_by_which(one.summary.router, scenario), one.runs) for one in runs],
    )
    deadline = f", deadline {load.deadline_s:g} s" if load.deadline_s < NEVER_S else ""
    console.print(
        f"{load.description}{deadline}; accuracy table '{scenario.cluster.models[0].quality.name}', "
        f"fluid bound {100 * first.bound_accuracy:.2f} %; energy {first.energy_source}"
    )
    if sure:
        console.print(
            f"The fluid bound holds for routers that do not look at examples; stopping when sure, "
            f"{100 * sure:.2f} % is possible."
        )
    for caveat in caveats([one.summary for one in runs], len(runs[0].runs)):
        console.print(caveat, markup=False)
    for path in written:
        if path is not None:
            console.print(f"written: {path}")
