"""A training run of the job order on disk: network, optimiser, best weights so far and the curve."""

from pathlib import Path

import msgspec
import numpy as np
import torch

from slimsched.jobs.learning.ppo import JobProgress, JobTrainer
from slimsched.kernel.ppo_checkpoint import checkpoint_errors, read_checkpoint, write_checkpoint


def save_training(path: Path, trainer: JobTrainer, curve: list[JobProgress]) -> None:
    """Write everything a run needs to go on."""
    ratio, best = trainer.best
    write_checkpoint(
        path,
        trainer.network,
        trainer.optimiser,
        {f"best.{name}": torch.tensor(value) for name, value in best.items()},
        {
            "update": trainer.update_number,
            "best": ratio,
            "pull": trainer.pull.tolist(),
            "curve": msgspec.to_builtins(curve),
        },
    )


def resume_training(path: Path, trainer: JobTrainer) -> list[JobProgress]:
    """Bring a trainer to where a run stopped; returns the curve so far."""
    with checkpoint_errors(path, "kind", "start another file"):
        tensors, story = read_checkpoint(path, trainer.network, trainer.optimiser)
        best = {name.removeprefix("best."): value.double().numpy().copy() for name, value in tensors.items()}
        trainer.best = (float(story["best"]), best)
        trainer.pull = np.array(story["pull"])
        trainer.update_number = int(story["update"])
        return [msgspec.convert(row, JobProgress) for row in story["curve"]]
