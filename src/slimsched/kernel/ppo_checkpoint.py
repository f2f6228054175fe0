"""A PPO training run on disk: tensors in NAME.safetensors, the rest in NAME.json beside it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from slimsched.kernel.errors import DataError


def write_checkpoint(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    more: Mapping[str, Tensor],
    story: Mapping[str, Any],
) -> None:
    """Write a network, its Adam, further tensors, and a story of plain values."""
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for number, state in optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in (tensors | dict(more)).items()}, path)
    path.with_suffix(".json").write_text(json.dumps(story))


def read_checkpoint(
    path: Path, network: nn.Module, optimiser: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Fill a network and its Adam from a checkpoint; return the further tensors and the story."""
    tensors = load_file(path)
    story: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    network.load_state_dict(_taken(tensors, "network."))
    adam = optimiser.state_dict()
    adam["state"] = {}
    for name, value in _taken(tensors, "adam.").items():
        number, _, part = name.partition(".")
        adam["state"].setdefault(int(number), {})[part] = value
    optimiser.load_state_dict(adam)
    return tensors, story


@contextmanager
def checkpoint_errors(path: Path, kind: str, remedy: str) -> Iterator[None]:
    """Turn what reading a wrong file raises into one DataError."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise DataError(f"{path.name} is not a training run of this {kind} ({text}); {remedy}") from None


def _taken(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the tensors with this prefix out, and return them without it."""
    return {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}
