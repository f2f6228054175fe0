"""A training run on disk: network, optimiser, state statistics and curve, so that it can go on later."""

import json
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slimsched.kernel.errors import DataError
from slimsched.serving.learning.ppo import PpoTrainer, Progress


def save_run(path: Path, trainer: PpoTrainer, curve: list[Progress]) -> None:
    """Write everything a run needs to go on."""
    tensors = {f"network.{name}": value for name, value in trainer.network.state_dict().items()}
    for number, state in trainer.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    tensors["mean"], tensors["deviation"] = torch.tensor(trainer.mean), torch.tensor(trainer.deviation)
    story = {
        "update": trainer.update_number,
        "statistics": trainer.statistics,
        "curve": msgspec.to_builtins(curve),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(story))


def resume_run(path: Path, trainer: PpoTrainer) -> list[Progress]:
    """Bring a trainer to where a run stopped; returns the curve so far."""
    try:
        tensors = load_file(path)
        story = json.loads(path.with_suffix(".json").read_text())
        network = {n.removeprefix("network."): v for n, v in tensors.items() if n.startswith("network.")}
        trainer.network.load_state_dict(network)
        adam = trainer.optimiser.state_dict()
        adam["state"] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, number, part = name.split(".", 2)
                adam["state"].setdefault(int(number), {})[part] = value
        trainer.optimiser.load_state_dict(adam)
        trainer.mean, trainer.deviation = tensors["mean"].numpy().copy(), tensors["deviation"].numpy().copy()
        trainer.resume(int(story["update"]), tuple(story["statistics"]))
        return [msgspec.convert(row, Progress) for row in story["curve"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise DataError(
            f"{path.name} is no training run of this scenario ({text}); start without --resume"
        ) from None
