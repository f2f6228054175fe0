"""`slim router`: train a PPO router or the goal router, tune all routers, and list them."""

import json
import os
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.cli.options import AsJson, Seed, picture, with_options
from slimsched.cli.progress import count_bar
from slimsched.cli.serving.scenario import LoadOptions, PoolOptions, Rate, ScenarioOptions
from slimsched.core.config import (
    ConfigError,
    Count,
    CountOrZero,
    Finite,
    RunSeconds,
    Share,
    UnknownNameError,
    WorkerCount,
    convert,
)
from slimsched.serving.gateway.goal import parse_goal
from slimsched.serving.routers.registry import ROUTERS, router_names, split_specs
from slimsched.serving.scenario.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.learning.ppo import PpoTrainer
    from slimsched.serving.learning.ppo import Progress as Point
    from slimsched.serving.learning.rollout import RewardWeights
    from slimsched.serving.learning.tune import Generation

app = typer.Typer(no_args_is_help=True)

KINDS = ("ppo", "goal")
"""The routers that can be trained."""

SAVE_EVERY = 20
"""Updates of PPO between two saves of a run that can be resumed."""


class TrainOptions(Struct, frozen=True, kw_only=True):
    """How to train, and where to put the result."""

    state: Annotated[
        Literal["head", "paper"], "What PPO sees: the head of the queue too, or the paper's state (1) only."
    ] = "head"
    weights: Annotated[
        str,
        "Weights of the paper's reward, for --state paper: accuracy, latency, energy, imbalance; "
        "a fifth replaces the bonus for full blocks, a sixth is the price of device time.",
    ] = "1,1,0.02,0.1"
    goal: Annotated[
        str,
        'What the worth of accuracy follows in training, as in "p99<=60ms", for --state head; '
        "else it is drawn for each episode.",
    ] = ""
    drawn: Annotated[Share, "Share of training on drawn clusters, for --state head."] = 0.5
    updates: Annotated[CountOrZero, "Updates of PPO, or generations for goal; 0 means the default."] = 0
    seed: Seed = 0
    out: Annotated[Path | None, "Where to write the result."] = None
    resume: Annotated[Path | None, "Save the run here, and continue it if it exists."] = None
    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw the training curve into a PNG.")
    ] = None
    workers: Annotated[WorkerCount, "Processes, for goal only; 0 means one per core."] = 0


class TuneOptions(Struct, frozen=True, kw_only=True):
    """Which routers to tune, and how long to search."""

    routers: Annotated[str, "Routers to tune, separated by commas; all that have knobs."] = ""
    budget: Annotated[Count, "Settings to try of each router."] = 16
    seconds: Annotated[RunSeconds, "Length of each run; the first quarter is left out."] = 4.0
    workers: Annotated[WorkerCount, "Processes; 0 means one per core."] = 0


@app.command("list")
def list_routers(as_json: AsJson = False) -> None:
    """List every router that compare, simulate and serve know by name, with a line about each."""
    names = router_names()
    if as_json:
        print(json.dumps(names))
        return
    width = max(map(len, names))
    for name in names:
        about = ROUTERS[name][1] if name in ROUTERS else "from an installed package"
        print(f"{name:{width}}  {about}")
    print("Options follow a colon: lp:margin=1.2. A goal in brackets: goal[p99<=60ms].")


@app.command()
@with_options
def train(
    scenario: ScenarioOptions,
    trained: TrainOptions,
    pool: PoolOptions,
    kind: Annotated[str, typer.Argument(help="ppo or goal.")] = "ppo",
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Train a router on a scenario.

    Examples:

      slim router train --scenario paper --out head.safetensors

      slim router train --state paper --weights 0.05,1,0.005,0.01 --out efficient.safetensors

      slim router train --goal "p99<=60ms" --out quick.safetensors

      slim router train --scenario edge-12 --resume run.pt --plot curve.png

      slim router train goal --out goal.json
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of router to train", kind, list(KINDS))
    if kind != "goal" and pool.engine != "local":
        raise ConfigError(
            f"--engine ray is for goal, whose candidates run side by side; {kind} learns from one run"
        )
    chosen = LoadOptions(rate=rate).apply(scenario.read()).scenario
    began_s = perf_counter()
    if kind == "goal":
        result = _train_goal(chosen, trained, pool, quiet=as_json)
    else:
        result = _train_ppo(chosen, trained, quiet=as_json)
    seconds = perf_counter() - began_s
    if as_json:
        print(json.dumps({**result, "seconds": seconds}))
    else:
        Console().print(f"trained in {seconds:.0f} s; written: {result['written']}")


@app.command()
@with_options
def tune(
    scenario: ScenarioOptions,
    tuned: TuneOptions,
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Search the knobs of routers, with the same budget for each, and print the fronts they reach.

    Examples:

      slim router tune --routers drift-plus-penalty,goal,ppo --budget 16

      slim router tune --scenario edge-12 --routers sed,ppo --seconds 6 --json
    """
    from slimsched.serving.learning import tune as tuning

    chosen = LoadOptions(rate=rate, seconds=tuned.seconds).apply(scenario.read()).scenario
    chosen = chosen.with_load(warmup_s=tuned.seconds / 4)
    routers = split_specs(tuned.routers or ",".join(tuning.KNOBS))
    fronts = {}
    with count_bar("tuning", len(routers) * tuned.budget, quiet=as_json) as bar:
        for router in routers:
            fronts[router] = tuning.tune(
                chosen,
                router,
                budget=tuned.budget,
                workers=tuned.workers or os.cpu_count() or 1,
                report=lambda point: bar.update(bar.task_ids[0], advance=1, description=point.router),
            )
    if as_json:
        print(json.dumps(msgspec.to_builtins(fronts), indent=1))
        return
    table = Table("router", "accuracy %", "p99 ms", "J/request", box=SIMPLE_HEAD, show_edge=False)
    for points in fronts.values():
        for one in points:
            figures = f"{100 * one.accuracy:.2f}", f"{1000 * one.p99_s:.0f}", f"{one.energy_j:.4f}"
            table.add_row(escape(one.router), *figures)
        table.add_section()
    Console().print(table)


def _train_ppo(scenario: Scenario, trained: TrainOptions, *, quiet: bool) -> dict[str, object]:
    import torch

    from slimsched.core.policy_file import write_policy
    from slimsched.serving.learning.policies import WORTH_S, HeadPolicy, PaperPolicy
    from slimsched.serving.learning.ppo import HEAD_OPTIONS, PAPER_OPTIONS, PpoTrainer, plot_curve
    from slimsched.serving.learning.worlds import DISTURBED, curriculum_of

    torch.set_num_threads(1)
    torch.manual_seed(trained.seed)
    state, is_paper = trained.state, trained.state == "paper"
    options = PAPER_OPTIONS if is_paper else HEAD_OPTIONS
    if trained.updates:
        options = msgspec.structs.replace(options, updates=trained.updates)
    drawn, disturbed = (0.0, 0.0) if is_paper else (trained.drawn, DISTURBED)
    curriculum = curriculum_of(scenario, episode_s=options.episode_s, drawn=drawn, disturbed=disturbed)
    reward = reward_of(trained.weights, scenario.cluster.models[0].quality.expected(()))
    if trained.goal and is_paper:
        raise ConfigError("--goal is for ppo with --state head; --state paper has --weights")
    goal = parse_goal(trained.goal) if trained.goal else None
    learner = PaperPolicy(scenario.cluster, reward) if is_paper else HeadPolicy(goal=goal)
    trainer = PpoTrainer(learner, curriculum.draw(scenario), options, seed=trained.seed)
    began_s = perf_counter()
    curve = _run_ppo(trainer, options.updates, trained.resume, quiet=quiet)
    story = {
        **_story("ppo", scenario, trained, options),
        "state": state,
        "epsilon": options.epsilon_min,
        "curriculum": msgspec.to_builtins(curriculum),
        **({"reward": msgspec.to_builtins(reward)} if is_paper else {"worth_s": WORTH_S}),
        "seconds": round(perf_counter() - began_s),
        "curve": [[p.update, round(p.reward, 4), round(p.accuracy, 4), round(p.latency_s, 4)] for p in curve],
    }
    out = trained.out or Path("ppo.safetensors")
    write_policy(out, learner.weights(), story)
    if trained.plot is not None:
        plot_curve(curve, f"ppo on {scenario.name}, state {state}", trained.plot)
    last = msgspec.to_builtins(curve[-1]) if curve else {}
    return {"kind": "ppo", "written": str(out), "updates": trainer.update_number, "last": last}


def reward_of(text: str, centre: float) -> "RewardWeights":
    """Read α, β, γ, δ of the paper's reward, and perhaps what makes up b_t."""
    from slimsched.serving.learning.rollout import RewardWeights

    names = ("accuracy", "latency_per_s", "energy_per_j", "imbalance", "bonus", "price")
    try:
        given = convert([float(part) for part in text.split(",")], list[Finite], "--weights")
        if not 4 <= len(given) <= len(names):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--weights '{text}' is not understood; write four to six numbers such as 1,1,0.02,0.1"
        ) from None
    return RewardWeights(**dict(zip(names, given, strict=False)), centre=centre)


def _run_ppo(trainer: "PpoTrainer", updates: int, resume: Path | None, *, quiet: bool) -> "list[Point]":
    """Train to the last update, from where an earlier run stopped; return the curve."""
    from slimsched.serving.learning.ppo import resume_run, save_run

    curve = resume_run(resume, trainer) if resume is not None and resume.is_file() else []
    with count_bar("training", updates, completed=trainer.update_number, quiet=quiet) as bar:

        def note(point: "Point") -> None:
            curve.append(point)
            text = f"accuracy {100 * point.accuracy:.1f} %, block {1000 * point.latency_s:.0f} ms"
            bar.update(bar.task_ids[0], advance=1, description=text)
            if resume is not None and (point.update % SAVE_EVERY == 0 or point.update == updates):
                save_run(resume, trainer, curve)

        trainer.train(note)
    return curve


def _train_goal(
    scenario: Scenario, trained: TrainOptions, pool: PoolOptions, *, quiet: bool
) -> dict[str, object]:
    from slimsched.serving.learning.tune import GoalTraining, train_goal

    chosen = GoalTraining(generations=trained.updates) if trained.updates else GoalTraining()
    workers = trained.workers or os.cpu_count() or 1
    curve: list[Generation] = []
    with count_bar("training", chosen.generations, quiet=quiet) as bar:

        def note(point: "Generation") -> None:
            curve.append(point)
            text = f"best {point.best:.4f}, mean {point.mean:.4f}"
            bar.update(bar.task_ids[0], advance=1, description=text)

        gains = train_goal(
            scenario, chosen, seed=trained.seed, workers=workers, report=note, pool=pool.open()
        )
    story = {
        "parameters": msgspec.to_builtins(gains),
        **_story("goal", scenario, trained, chosen),
        "curve": [[g.number, round(g.best, 4), round(g.mean, 4)] for g in curve],
    }
    out = trained.out or Path("goal.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(story, indent=1) + "\n")
    return {"kind": "goal", "written": str(out), "parameters": msgspec.to_builtins(gains)}


def _story(kind: str, scenario: Scenario, trained: TrainOptions, options: Struct) -> dict[str, Any]:
    """Say how a result came about."""
    return {
        "kind": kind,
        "accuracy": scenario.cluster.models[0].quality.name,
        "seed": trained.seed,
        **({"goal": trained.goal} if trained.goal else {}),
        "date": date.today().isoformat(),
        "options": msgspec.to_builtins(options),
    }
