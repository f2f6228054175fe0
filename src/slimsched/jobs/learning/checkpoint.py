"""A training run of the job order on disk: network, optimiser, best weights so far and the curve."""

import json
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slimsched.jobs.learning.ppo import JobProgress, JobTrainer
from slimsched.kernel.errors import DataError


def save_training(path: Path, trainer: JobTrainer, curve: list[JobProgress]) -> None:
    """Write everything a run needs to go on."""
    ratio, best = trainer.best
    tensors = {f"network.{name}": value for name, value in trainer.network.state_dict().items()}
    tensors |= {f"best.{name}": torch.tensor(value) for name, value in best.items()}
    for number, state in trainer.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    story = {
        "update": trainer.update_number,
        "best": ratio,
        "pull": trainer.pull.tolist(),
        "curve": msgspec.to_builtins(curve),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(story))


def resume_training(path: Path, trainer: JobTrainer) -> list[JobProgress]:
    """Bring a trainer to where a run stopped; returns the curve so far."""
    try:
        parts: dict[str, dict[str, torch.Tensor]] = {"network": {}, "best": {}, "adam": {}}
        for name, value in load_file(path).items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        story = json.loads(path.with_suffix(".json").read_text())
        trainer.network.load_state_dict(parts["network"])
        adam = trainer.optimiser.state_dict()
        adam["state"] = {}
        for name, value in parts["adam"].items():
            number, _, rest = name.partition(".")
            adam["state"].setdefault(int(number), {})[rest] = value
        trainer.optimiser.load_state_dict(adam)
        best = {name: value.double().numpy().copy() for name, value in parts["best"].items()}
        trainer.best = (float(story["best"]), best)
        trainer.pull = np.array(story["pull"])
        trainer.update_number = int(story["update"])
        return [msgspec.convert(row, JobProgress) for row in story["curve"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise DataError(f"{path.name} is no training run of this kind ({text}); start another file") from None
