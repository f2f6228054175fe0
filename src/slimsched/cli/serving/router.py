"""`slim router`: train the paper's PPO or the goal router, and list what there is."""

import json
import os
from concurrent.futures import Executor
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slimsched.cli.serving import engine as engines
from slimsched.cli.serving import scenario as options
from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.serving.execution.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.learning.rollout import RewardWeights

app = typer.Typer(no_args_is_help=True)

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


@app.command("list")
def list_routers(as_json: options.AsJson = False) -> None:
    """List every router that compare, simulate and serve know."""
    from slimsched.serving.learning.registry import router_names

    names = router_names()
    print(json.dumps(names) if as_json else "\n".join(names))


@app.command()
def train(
    kind: Annotated[str, typer.Argument(help="ppo (the paper's) or goal (ours).")] = "ppo",
    scenario: options.ScenarioName = "paper",
    config: options.ConfigFile = None,
    accuracy: options.Accuracy = None,
    rate: options.Rate = None,
    weights: Annotated[
        str, typer.Option("--weights", help="Of the paper's reward: accuracy, latency, energy, imbalance.")
    ] = "1,1,0.02,0.1",
    updates: Annotated[int, typer.Option("--updates", help="PPO updates, or generations for goal.")] = 0,
    seed: options.Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the result.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Keep the run here, and go on with it if it exists.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the training curve to a PNG.")] = None,
    workers: Annotated[int, typer.Option("--workers", help="Processes (goal only); 0: one a core.")] = 0,
    engine: engines.EngineName = "local",
    address: engines.Address = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a router on a scenario.

    Examples:

      slim router train --scenario paper --weights 0.05,1,0.02,0.1 --out efficient.safetensors

      slim router train --scenario edge-12 --resume run.safetensors --plot curve.png

      slim router train goal --out goal.json
    """
    if kind not in ("ppo", "goal"):
        raise UnknownNameError("kind of router to train", kind, ["ppo", "goal"])
    if updates < 0:
        raise ConfigError(f"--updates is {updates}; give 1 or more, or leave it out")
    if kind == "ppo" and engine != "local":
        raise ConfigError(
            "--engine ray is for goal, whose candidates run side by side; ppo learns from one run"
        )
    chosen, _, _ = options.choose(scenario, config, accuracy, None, rate, None)
    began_s = perf_counter()
    if kind == "ppo":
        story = _train_ppo(
            chosen, weights, updates, seed, out or Path("ppo.safetensors"), resume, plot, as_json
        )
    else:
        pool = engines.task_pool(engine, address)
        story = _train_goal(
            chosen, updates, seed, out or Path("goal.json"), workers or os.cpu_count() or 1, as_json, pool
        )
    seconds = perf_counter() - began_s
    if as_json:
        print(json.dumps({**story, "seconds": seconds}))
    else:
        Console().print(f"trained in {seconds:.0f} s; written: {story['written']}")


def _train_ppo(
    scenario: Scenario,
    weights: str,
    updates: int,
    seed: int,
    out: Path,
    resume: Path | None,
    plot: Path | None,
    quiet: bool,
) -> dict[str, object]:
    import torch

    from slimsched.serving.learning.policy_file import write_policy
    from slimsched.serving.learning.ppo import PpoOptions, PpoTrainer
    from slimsched.serving.learning.ppo import Progress as Point
    from slimsched.serving.learning.ppo_checkpoint import resume_run, save_run

    torch.set_num_threads(1)
    reward = _reward(weights, scenario.cluster.accuracy.expected(()))
    chosen = PpoOptions(weights=reward) if not updates else PpoOptions(weights=reward, updates=updates)
    trainer = PpoTrainer(scenario, chosen, seed=seed)
    curve: list[Point] = []
    if resume is not None and resume.is_file():
        curve = resume_run(resume, trainer)
    with Progress(*_COLUMNS, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("training", total=chosen.updates, completed=trainer.update_number)

        def note(point: Point) -> None:
            curve.append(point)
            text = f"accuracy {100 * point.accuracy:.1f} %, block {1000 * point.latency_s:.0f} ms"
            bar.update(task, advance=1, description=text)
            if resume is not None and (point.update % 20 == 0 or point.update == chosen.updates):
                save_run(resume, trainer, curve)

        trainer.train(note)
    story = {
        "kind": "ppo",
        "scenario": scenario.name,
        "accuracy": scenario.cluster.accuracy.name,
        "epsilon": chosen.epsilon_min,
        "seed": seed,
        "date": date.today().isoformat(),
        "options": msgspec.to_builtins(chosen),
        "curve": [[p.update, round(p.reward, 4), round(p.accuracy, 4), round(p.latency_s, 4)] for p in curve],
    }
    write_policy(out, trainer.weights(), story)
    if plot is not None:
        from slimsched.serving.learning.ppo_checkpoint import plot_curve

        series = {
            "reward": [p.reward for p in curve],
            "accuracy prior": [p.accuracy for p in curve],
            "block latency, s": [p.latency_s for p in curve],
            "entropy": [p.entropy for p in curve],
        }
        plot_curve(series, f"PPO on {scenario.name}, weights {weights}", plot)
    last = msgspec.to_builtins(curve[-1]) if curve else {}
    return {"kind": "ppo", "written": str(out), "updates": trainer.update_number, "last": last}


def _train_goal(
    scenario: Scenario,
    generations: int,
    seed: int,
    out: Path,
    workers: int,
    quiet: bool,
    pool: Executor | None,
) -> dict[str, object]:
    from slimsched.serving.learning.evolution import Generation
    from slimsched.serving.learning.goal_training import GoalTraining, train_goal

    chosen = GoalTraining() if not generations else GoalTraining(generations=generations)
    curve: list[Generation] = []
    with Progress(*_COLUMNS, console=Console(stderr=True), disable=quiet, transient=True) as bar:
        task = bar.add_task("training", total=chosen.generations)

        def note(point: Generation) -> None:
            curve.append(point)
            bar.update(task, advance=1, description=f"best {point.best:.4f}, mean {point.mean:.4f}")

        found = train_goal(scenario, chosen, seed=seed, workers=workers, report=note, pool=pool)
    story = {
        "parameters": msgspec.to_builtins(found),
        "kind": "goal",
        "accuracy": scenario.cluster.accuracy.name,
        "seed": seed,
        "date": date.today().isoformat(),
        "options": msgspec.to_builtins(chosen),
        "curve": [[g.number, round(g.best, 4), round(g.mean, 4)] for g in curve],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(story, indent=1) + "\n")
    return {"kind": "goal", "written": str(out), "parameters": msgspec.to_builtins(found)}


def _reward(text: str, centre: float) -> "RewardWeights":
    """α,β,γ,δ as numbers."""
    from slimsched.serving.learning.rollout import RewardWeights

    try:
        accuracy, latency, energy, imbalance = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--weights '{text}' is not understood; write four numbers such as 1,1,0.02,0.1"
        ) from None
    return RewardWeights(
        accuracy=accuracy, latency_per_s=latency, energy_per_j=energy, imbalance=imbalance, centre=centre
    )
