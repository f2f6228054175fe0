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

from slimsched.kernel.errors import DataError
from slimsched.kernel.quantity import CountOrZero, Seconds
from slimsched.models.network import SlimNetwork
from slimsched.models.training.optimizer import STATE_NAMES
from slimsched.models.training.recipe import Recipe

NAME = "checkpoint.safetensors"
PARTS = ("net", "average", *STATE_NAMES)


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
    tensors = {
        f"{part}.{name}": tensor
        for part, named in _tensors(net, average, optimizer).items()
        for name, tensor in named.items()
    }
    return _write(folder / NAME, tensors, progress)


def save_small(
    folder: Path,
    progress: Progress,
    net: SlimNetwork,
    average: SlimNetwork,
    optimizer: torch.optim.Optimizer,
) -> list[Path]:
    """Write a checkpoint in half precision, one file per part, for places that limit file sizes.

    `load` reads these files if there is no full checkpoint; optimizer parts may be missing.
    """
    paths = []
    for part, named in _tensors(net, average, optimizer).items():
        dtype = (
            torch.float32
            if part == "step"
            else torch.float16
            if part in ("net", "average")
            else torch.bfloat16
        )
        small = {f"{part}.{name}": tensor.to(dtype) for name, tensor in named.items()}
        if small:
            paths.append(_write(folder / f"{part}.safetensors", small, progress))
    return paths


def exists(folder: Path) -> bool:
    """Whether this folder holds a checkpoint, full or in parts."""
    return (folder / NAME).exists() or (folder / f"{PARTS[0]}.safetensors").exists()


def load(
    folder: Path, recipe: Recipe, net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer
) -> Progress:
    """Restore a checkpoint and return its progress; the recipe must not have changed."""
    paths = [folder / NAME]
    if not paths[0].exists():
        paths = [path for part in PARTS if (path := folder / f"{part}.safetensors").exists()]
    try:
        progress, tensors = _read(paths, recipe)
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
        raise DataError(
            f"checkpoint {paths[0]} does not fit this run ({error}); start a new folder"
        ) from None
    return progress


def _read(paths: list[Path], recipe: Recipe) -> tuple[Progress, dict[str, Tensor]]:
    tensors: dict[str, Tensor] = {}
    progress = Progress(recipe=recipe)
    for path in paths:
        with safe_open(path, framework="pt") as file:
            progress = msgspec.json.decode(file.metadata()["progress"], type=Progress)
            if progress.recipe != recipe:
                raise DataError(
                    f"{path} is of a run with another recipe; resume with that one or name another folder"
                )
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return progress, tensors


def _like(parameter: Tensor, state: Tensor) -> Tensor:
    """Copy the state to the parameter's device and memory layout; a step count stays a scalar."""
    if state.dim() == 0:
        return state.to(parameter.device)
    return torch.empty_like(parameter).copy_(state)


def _tensors(
    net: SlimNetwork, average: SlimNetwork, optimizer: torch.optim.Optimizer
) -> dict[str, dict[str, Tensor]]:
    """Return all tensors by part and parameter."""
    parts: dict[str, dict[str, Tensor]] = {
        "net": {name: parameter.detach() for name, parameter in net.named_parameters()},
        "average": {name: parameter.detach() for name, parameter in average.named_parameters()},
    }
    for key in STATE_NAMES:
        parts[key] = {
            name: state
            for name, parameter in net.named_parameters()
            if (state := optimizer.state[parameter].get(key)) is not None
        }
    return parts


def _write(path: Path, tensors: dict[str, Tensor], progress: Progress) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        partial,
        metadata={"progress": msgspec.json.encode(progress).decode()},
    )
    partial.replace(path)
    return path
