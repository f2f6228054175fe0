"""Checkpoints: all that a training run needs to resume (weights, average, momentum, progress).

A checkpoint is a safetensors file with JSON in its header. It is replaced in one step, so an interrupted
write leaves the previous checkpoint intact.
"""

from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slimsched.core.config import CountOrZero, DataError, Seconds
from slimsched.models.network import SlimNetwork
from slimsched.models.training.optimizer import STATE_NAMES
from slimsched.models.training.recipe import Recipe

NAME = "checkpoint.safetensors"


class Progress(Struct, frozen=True, kw_only=True):
    """Epochs done, total epochs (0: not decided yet) and seconds spent."""

    recipe: Recipe
    epoch: CountOrZero = 0
    epochs: CountOrZero = 0
    seconds: Seconds = 0.0


def save(
    folder: Path,
    progress: Progress,
    net: SlimNetwork,
    average: SlimNetwork,
    optimizer: torch.optim.Optimizer,
) -> Path:
    """Write the checkpoint of a run into its folder."""
    tensors = _tensors(net, average, optimizer)
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        partial,
        metadata={"progress": msgspec.json.encode(progress).decode()},
    )
    partial.replace(path)
    return path


def exists(folder: Path) -> bool:
    """Whether this folder holds a checkpoint."""
    return (folder / NAME).exists()


def load(
    folder: Path, recipe: Recipe, net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer
) -> Progress:
    """Restore a checkpoint and return its progress; the recipe must not have changed."""
    path = folder / NAME
    try:
        progress, tensors = _read(path, recipe)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter.copy_(tensors[f"net.{name}"])
                for key in STATE_NAMES:
                    state = tensors.get(f"{key}.{name}")
                    if state is not None:
                        optimizer.state[parameter][key] = _like(parameter, state)
            for name, parameter in average.named_parameters():
                parameter.copy_(tensors.get(f"average.{name}", tensors[f"net.{name}"]))
    except (SafetensorError, KeyError, RuntimeError, msgspec.DecodeError, OSError) as error:
        raise DataError(f"checkpoint {path} does not fit this run ({error}); start a new folder") from None
    return progress


def _read(path: Path, recipe: Recipe) -> tuple[Progress, dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        progress = msgspec.json.decode(file.metadata()["progress"], type=Progress)
        if progress.recipe != recipe:
            raise DataError(
                f"{path} is of a run with another recipe; resume with that one or name another folder"
            )
        return progress, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _like(parameter: Tensor, state: Tensor) -> Tensor:
    """Copy the state to the parameter's device and memory layout; a step count stays a scalar."""
    if state.dim() == 0:
        return state.to(parameter.device)
    return torch.empty_like(parameter).copy_(state)


def _tensors(net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all tensors, each under its part and the name of its parameter."""
    states = {
        f"{key}.{name}": state
        for key in STATE_NAMES
        for name, parameter in net.named_parameters()
        if (state := optimizer.state[parameter].get(key)) is not None
    }
    return {
        **{f"net.{name}": parameter.detach() for name, parameter in net.named_parameters()},
        **{f"average.{name}": parameter.detach() for name, parameter in average.named_parameters()},
        **states,
    }
