"""What a training run needs to go on after an interruption: weights, average, momentum, and where it was.

Tensors are safetensors, the rest is JSON in the same file's header. The file is replaced whole, so a cut
while writing leaves the one before.
"""

from pathlib import Path

import msgspec
import torch
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slimsched.kernel.errors import DataError
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.training.recipe import Recipe

NAME = "checkpoint.safetensors"


class Progress(Struct, frozen=True, kw_only=True):
    """Epochs done, epochs in all (0: not fixed yet) and seconds spent."""

    recipe: Recipe
    epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0


def save(
    folder: Path, progress: Progress, net: SlimResNet, average: SlimResNet, optimizer: torch.optim.SGD
) -> Path:
    """Write the checkpoint of a run into its folder."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in net.named_parameters():
        tensors[f"net.{name}"] = parameter.detach()
        momentum = optimizer.state[parameter].get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = momentum
    tensors |= {f"average.{name}": parameter.detach() for name, parameter in average.named_parameters()}
    folder.mkdir(parents=True, exist_ok=True)
    path, partial = folder / NAME, folder / f"{NAME}.partial"
    save_file(
        {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
        partial,
        metadata={"progress": msgspec.json.encode(progress).decode()},
    )
    partial.replace(path)
    return path


def load(
    path: Path, recipe: Recipe, net: SlimResNet, average: SlimResNet, optimizer: torch.optim.SGD
) -> Progress:
    """Put a checkpoint back and say where the run was; the recipe must be the one it began with."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = msgspec.json.decode(file.metadata()["progress"], type=Progress)
            if progress.recipe != recipe:
                raise DataError(
                    f"{path} is of a run with another recipe; resume with that one or name another folder"
                )
            with torch.no_grad():
                for name, parameter in net.named_parameters():
                    parameter.copy_(file.get_tensor(f"net.{name}"))
                    if progress.epoch:
                        momentum = torch.empty_like(parameter)
                        momentum.copy_(file.get_tensor(f"momentum.{name}"))
                        optimizer.state[parameter]["momentum_buffer"] = momentum
                for name, parameter in average.named_parameters():
                    parameter.copy_(file.get_tensor(f"average.{name}"))
    except (SafetensorError, KeyError, RuntimeError, msgspec.DecodeError, OSError) as error:
        raise DataError(f"checkpoint {path} does not fit this run ({error}); start a new folder") from None
    return progress
