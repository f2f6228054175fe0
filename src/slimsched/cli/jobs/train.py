"""`slim jobs train`: learn an order of waiting jobs by PPO."""

import json
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from slimsched.cli.jobs import setting as options
from slimsched.cli.jobs.simulate import COLUMNS
from slimsched.kernel.errors import ConfigError

SAVE_EVERY = 5


def train(
    cluster: options.Cluster = "racks-512",
    network: Annotated[
        str, typer.Option("--network", help="Networks of the training windows, in turn; comma-separated.")
    ] = "congested,oversubscribed,fast",
    updates: Annotated[int, typer.Option("--updates", help="PPO updates in all.", min=1)] = 30,
    jobs: Annotated[int, typer.Option("--jobs", help="Jobs of a training window.", min=10)] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same windows and weights.", min=0)] = 0,
    out: Annotated[Path, typer.Option("--out", help="Where to write the order.")] = Path("job-order.json"),
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Keep the run in this .safetensors, and go on with it if it exists."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train an order of waiting jobs on windows of generated jobs; use it as policy rl:FILE.

    Examples:

      slim jobs train --updates 30 --out my-order.json --resume my-run.safetensors

      slim jobs compare --policies dally,rl,rl:my-order.json --arrivals batch
    """
    import torch

    from slimsched.jobs.domain.fabric import fabric_named
    from slimsched.jobs.learning.checkpoint import resume_training, save_training
    from slimsched.jobs.learning.ppo import JobProgress, JobTrainer, JobTraining, generated_windows
    from slimsched.jobs.learning.registry import write_order

    if out.suffix != ".json":
        raise ConfigError(f"--out {out} does not end in .json; name a JSON file")
    networks = tuple(network.split(","))
    for name in networks:
        fabric_named(name)
    torch.set_num_threads(1)
    topology = options.read_topology(cluster, None)
    chosen = JobTraining(updates=updates, jobs=jobs, networks=networks)
    trainer = JobTrainer(generated_windows(topology.machines, topology.name, chosen), chosen, seed=seed)
    curve: list[JobProgress] = []
    if resume is not None and resume.is_file():
        curve = resume_training(resume, trainer)
    began_s = perf_counter()
    with Progress(*COLUMNS, console=Console(stderr=True), disable=as_json, transient=True) as bar:
        task = bar.add_task("training", total=updates, completed=trainer.update_number)

        def note(point: JobProgress) -> None:
            curve.append(point)
            text = f"reward {point.reward:.3f}, best JCT {100 * trainer.best[0]:.1f} % of dally's"
            bar.update(task, advance=1, description=text)
            if resume is not None and (point.update % SAVE_EVERY == 0 or point.update == updates):
                save_training(resume, trainer, curve)

        trainer.train(note)
    ratio, weights = trainer.best
    story = {
        "kind": "job-order",
        "cluster": topology.name,
        "seed": seed,
        "date": date.today().isoformat(),
        "jct_ratio": round(ratio, 4),
        "options": msgspec.to_builtins(chosen),
        "curve": [[p.update, round(p.reward, 4), p.jct_ratio and round(p.jct_ratio, 4)] for p in curve],
    }
    write_order(out, weights, story)
    seconds = perf_counter() - began_s
    if as_json:
        print(json.dumps({"written": str(out), "updates": updates, "jct_ratio": ratio, "seconds": seconds}))
        return
    told = f"mean JCT {100 * ratio:.1f} % of dally's on windows kept aside"
    Console().print(f"trained in {seconds:.0f} s; {told}; written: {out}")
