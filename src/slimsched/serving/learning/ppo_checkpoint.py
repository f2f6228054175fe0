"""A training run on disk: saves it so that it can resume later, and plots its curve."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch

from slimsched.core.ppo import checkpoint_errors, read_checkpoint, write_checkpoint
from slimsched.serving.learning.ppo import PpoTrainer, Progress
from slimsched.serving.telemetry.pictures import pyplot


def save_run(path: Path, trainer: PpoTrainer, curve: list[Progress]) -> None:
    """Write what a run needs to resume: network, optimiser, statistics of the inputs, and curve."""
    write_checkpoint(
        path,
        trainer.learner.network,
        trainer.optimiser,
        {f"policy.{name}": torch.tensor(value) for name, value in trainer.learner.weights().items()},
        {"update": trainer.update_number, "scale": trainer.scale, "curve": msgspec.to_builtins(curve)},
    )


def resume_run(path: Path, trainer: PpoTrainer) -> list[Progress]:
    """Bring a trainer to where a saved run stopped, and return the curve so far."""
    with checkpoint_errors(path, "policy", "start without --resume"):
        tensors, story = read_checkpoint(path, trainer.learner.network, trainer.optimiser)
        trainer.learner.use(
            {name.removeprefix("policy."): value.numpy().copy() for name, value in tensors.items()}
        )
        trainer.resume(int(story["update"]), float(story["scale"]))
        return [msgspec.convert(row, Progress) for row in story["curve"]]


def plot_curve(series: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Plot each series over the updates, one panel per series."""
    plt = pyplot()
    figure, panels = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), layout="constrained")
    figure.suptitle(title)
    for panel, (name, values) in zip(panels, series.items(), strict=True):
        panel.plot(range(1, len(values) + 1), values, linewidth=1)
        panel.set(xlabel="update", title=name)
    figure.savefig(path, dpi=110)
    plt.close(figure)
