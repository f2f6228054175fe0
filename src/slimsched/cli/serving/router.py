"""`slim router`: train the paper's PPO or the goal router, and list all routers."""

import json
import os
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.output_path import picture
from slimsched.cli.progress import count_bar
from slimsched.cli.serving.engine import PoolOptions
from slimsched.cli.serving.scenario import LoadOptions, Rate, ScenarioOptions
from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.kernel.quantity import CountOrZero, Finite, WorkerCount
from slimsched.kernel.section import convert
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.registry import router_names

if TYPE_CHECKING:
    from slimsched.serving.learning.evolution import Generation
    from slimsched.serving.learning.ppo import PpoTrainer
    from slimsched.serving.learning.ppo import Progress as Point
    from slimsched.serving.learning.rollout import RewardWeights

app = typer.Typer(no_args_is_help=True)

SAVE_EVERY = 20
"""Updates of PPO between two saves of a run that can be resumed."""


class TrainOptions(Struct, frozen=True, kw_only=True):
    """How to train, and where to put the result."""

    weights: Annotated[
        str,
        typer.Option(
            "--weights", help="Weights of the paper's reward: accuracy, latency, energy, imbalance."
        ),
    ] = "1,1,0.02,0.1"
    updates: Annotated[
        CountOrZero,
        typer.Option("--updates", help="Updates of PPO, or generations for goal; 0 means the default."),
    ] = 0
    seed: Seed = 0
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the result.")] = None
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Save the run here, and continue it if it exists.")
    ] = None
    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw the training curve into a PNG.")
    ] = None
    workers: Annotated[
        WorkerCount, typer.Option("--workers", help="Processes, for goal only; 0 means one per core.")
    ] = 0


@app.command("list")
def list_routers(as_json: AsJson = False) -> None:
    """List every router that compare, simulate and serve know by name."""
    names = router_names()
    print(json.dumps(names) if as_json else "\n".join(names))


@app.command()
@with_options
def train(
    scenario: ScenarioOptions,
    trained: TrainOptions,
    pool: PoolOptions,
    kind: Annotated[str, typer.Argument(help="ppo (the paper's) or goal (ours).")] = "ppo",
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Train a router on a scenario.

    Examples:

      slim router train --scenario paper --weights 0.05,1,0.02,0.1 --out efficient.safetensors

      slim router train --scenario edge-12 --resume run.safetensors --plot curve.png

      slim router train goal --out goal.json
    """
    if kind not in ("ppo", "goal"):
        raise UnknownNameError("kind of router to train", kind, ["ppo", "goal"])
    if kind == "ppo" and pool.engine != "local":
        raise ConfigError(
            "--engine ray is for goal, whose candidates run side by side; ppo learns from one run"
        )
    chosen = scenario.read().under(LoadOptions(rate=rate)).scenario
    began_s = perf_counter()
    if kind == "ppo":
        result = _train_ppo(chosen, trained, quiet=as_json)
    else:
        result = _train_goal(chosen, trained, pool, quiet=as_json)
    seconds = perf_counter() - began_s
    if as_json:
        print(json.dumps({**result, "seconds": seconds}))
    else:
        Console().print(f"trained in {seconds:.0f} s; written: {result['written']}")


def _train_ppo(scenario: Scenario, trained: TrainOptions, *, quiet: bool) -> dict[str, object]:
    import torch

    from slimsched.kernel.policy_file import write_policy
    from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer

    torch.set_num_threads(1)
    reward = _reward(trained.weights, scenario.cluster.models[0].quality.expected(()))
    chosen = PpoOptions(weights=reward)
    if trained.updates:
        chosen = msgspec.structs.replace(chosen, updates=trained.updates)
    trainer = PpoTrainer(scenario, chosen, seed=trained.seed)
    curve = _run_ppo(trainer, chosen.updates, trained.resume, quiet=quiet)
    story = {
        **_story("ppo", scenario, trained, chosen),
        "scenario": scenario.name,
        "epsilon": chosen.epsilon_min,
        "curve": [[p.update, round(p.reward, 4), round(p.accuracy, 4), round(p.latency_s, 4)] for p in curve],
    }
    out = trained.out or Path("ppo.safetensors")
    write_policy(out, trainer.weights(), story)
    if trained.plot is not None:
        _plot_ppo(curve, f"PPO on {scenario.name}, weights {trained.weights}", trained.plot)
    last = msgspec.to_builtins(curve[-1]) if curve else {}
    return {"kind": "ppo", "written": str(out), "updates": trainer.update_number, "last": last}


def _run_ppo(trainer: "PpoTrainer", updates: int, resume: Path | None, *, quiet: bool) -> "list[Point]":
    """Train to the last update, from where an earlier run stopped; return the curve."""
    from slimsched.serving.learning.ppo_checkpoint import resume_run, save_run

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


def _plot_ppo(curve: "list[Point]", title: str, plot: Path) -> None:
    from slimsched.serving.learning.ppo_checkpoint import plot_curve

    series = {
        "reward": [p.reward for p in curve],
        "accuracy prior": [p.accuracy for p in curve],
        "block latency, s": [p.latency_s for p in curve],
        "entropy": [p.entropy for p in curve],
    }
    plot_curve(series, title, plot)


def _train_goal(
    scenario: Scenario, trained: TrainOptions, pool: PoolOptions, *, quiet: bool
) -> dict[str, object]:
    from slimsched.serving.learning.goal_training import GoalTraining, train_goal

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
        "date": date.today().isoformat(),
        "options": msgspec.to_builtins(options),
    }


def _reward(text: str, centre: float) -> "RewardWeights":
    """Read α, β, γ and δ of the paper's reward."""
    from slimsched.serving.learning.rollout import RewardWeights

    try:
        given = [float(part) for part in text.split(",")]
        accuracy, latency, energy, imbalance = convert(given, list[Finite], "--weights")
    except ValueError:
        raise ConfigError(
            f"--weights '{text}' is not understood; write four numbers such as 1,1,0.02,0.1"
        ) from None
    return RewardWeights(
        accuracy=accuracy, latency_per_s=latency, energy_per_j=energy, imbalance=imbalance, centre=centre
    )
