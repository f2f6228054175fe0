"""`slim jobs train`: learn an order of waiting jobs by PPO."""

import json
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.jobs.workload import Cluster, progress_bar, read_cluster_named
from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.quantity import Count, WindowJobs

if TYPE_CHECKING:
    from slimsched.jobs.learning.ppo import JobProgress, JobTrainer

SAVE_EVERY = 5


class TrainOptions(Struct, frozen=True, kw_only=True):
    """What to train on, for how long, and where to write the order."""

    cluster: Cluster = "racks-512"
    network: Annotated[
        str, typer.Option("--network", help="Networks of the training windows, in turn; comma-separated.")
    ] = "congested,oversubscribed,fast"
    updates: Annotated[Count, typer.Option("--updates", help="PPO updates in all.")] = 30
    jobs: Annotated[WindowJobs, typer.Option("--jobs", help="Jobs per training window.")] = 2000
    seed: Seed = 0
    out: Annotated[Path, typer.Option("--out", help="Where to write the order.")] = Path("job-order.json")
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Keep the run in this .safetensors, and go on with it if it exists."),
    ] = None

    def trainer(self) -> "JobTrainer":
        """Check the options and make a trainer that has done nothing yet."""
        from slimsched.jobs.domain.fabric import fabric_named
        from slimsched.jobs.learning.ppo import JobTrainer, JobTraining, generated_windows

        if self.out.suffix != ".json":
            raise ConfigError(f"--out {self.out} does not end in .json; name a JSON file")
        networks = tuple(self.network.split(","))
        for name in networks:
            fabric_named(name)
        topology = read_cluster_named(self.cluster)
        training = JobTraining(updates=self.updates, jobs=self.jobs, networks=networks)
        windows = generated_windows(topology.machines, topology.name, training)
        return JobTrainer(windows, training, seed=self.seed)


@with_options
def train(options: TrainOptions, as_json: AsJson = False) -> None:
    """Train an order of waiting jobs on windows of generated jobs; use it as policy rl:file=FILE.

    Examples:

      slim jobs train --updates 30 --out my-order.json --resume my-run.safetensors

      slim jobs compare --policies dally,rl,rl:file=my-order.json --arrivals batch
    """
    import torch

    from slimsched.jobs.execution.order_file import write_order

    torch.set_num_threads(1)
    trainer = options.trainer()
    began_s = perf_counter()
    curve = _train(trainer, options, quiet=as_json)
    ratio, weights = trainer.best
    write_order(options.out, weights, _story(trainer, options, curve))
    seconds = perf_counter() - began_s
    if as_json:
        row = {"written": str(options.out), "updates": options.updates}
        print(json.dumps({**row, "jct_ratio": ratio, "seconds": seconds}))
        return
    figures = f"mean JCT {100 * ratio:.1f} % of dally's on windows kept aside"
    Console().print(f"trained in {seconds:.0f} s; {figures}; written: {options.out}")


def _train(trainer: "JobTrainer", options: TrainOptions, *, quiet: bool) -> "list[JobProgress]":
    """Do all updates that are left, saving the run now and then; returns the curve."""
    from slimsched.jobs.learning.checkpoint import resume_training, save_training

    resume = options.resume
    curve = resume_training(resume, trainer) if resume is not None and resume.is_file() else []
    with progress_bar("training", total=options.updates, done=trainer.update_number, quiet=quiet) as show:

        def updated(point: "JobProgress") -> None:
            curve.append(point)
            best = f"best JCT {100 * trainer.best[0]:.1f} % of dally's"
            show(point.update, f"reward {point.reward:.3f}, {best}")
            if resume is not None and (point.update % SAVE_EVERY == 0 or point.update == options.updates):
                save_training(resume, trainer, curve)

        trainer.train(updated)
    return curve


def _story(trainer: "JobTrainer", options: TrainOptions, curve: "list[JobProgress]") -> dict[str, Any]:
    """Return how the weights came about, for the file."""
    return {
        "kind": "job-order",
        "cluster": read_cluster_named(options.cluster).name,
        "seed": options.seed,
        "date": date.today().isoformat(),
        "jct_ratio": round(trainer.best[0], 4),
        "options": msgspec.to_builtins(trainer.options),
        "curve": [[p.update, round(p.reward, 4), p.jct_ratio and round(p.jct_ratio, 4)] for p in curve],
    }
