"""One PPO update, equations (6) to (13) of the Slim Scheduler paper: likelihood, advantages, losses, step.

The PPO router of requests and the PPO policy for jobs both learn with it.

A training run can be saved and continued: tensors in NAME.safetensors, the rest in NAME.json beside it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from slimsched.core.config import DataError

# -- A PPO training run on disk: tensors in NAME.safetensors, the rest in NAME.json beside it.


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


IMPOSSIBLE = -1e9
"""The logit of an action that cannot be taken. It is finite, so that its share of the entropy is 0."""


class UpdateOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The paper's constants where it gives them (clip, c_v, K), otherwise our own."""

    epochs: int = 3  # K
    clip: float = 0.2  # ϵ
    value_weight: float = 0.5  # c_v
    entropy_weight: float = 0.003  # c_H
    gradient_norm: float = 0.5
    learning_rate: float = 1e-3
    minibatch: int = 512


def log_probability(logits: list[Tensor], actions: Tensor, epsilon: Tensor) -> Tensor:
    """Return log π̃(a|s), eqs. (5) and (6): the server head is mixed with ε of uniform, the others are not.

    Actions that could not be taken have the logit `IMPOSSIBLE`.
    """
    servers = (logits[0] > IMPOSSIBLE).sum(dim=1)
    server = torch.softmax(logits[0], dim=1).gather(1, actions[:, :1]).squeeze(1)
    mixed = (1.0 - epsilon) * server + epsilon / servers
    others = sum(
        torch.log_softmax(head, dim=1).gather(1, actions[:, column : column + 1]).squeeze(1)
        for column, head in enumerate(logits[1:], start=1)
    )
    return torch.log(mixed) + others


# ------------------------------------------------------------------------------- (8) advantages


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """Return one-step advantages: R = r, A = R − V_old(s), then zero mean and unit deviation."""
    advantage = rewards - values
    return (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)


# ------------------------------------------------------------------------------ (9) to (13) losses


class Losses(Struct, frozen=True):
    """The parts of J, and J itself."""

    surrogate: Tensor  # L_CLIP
    value: Tensor  # L_V
    entropy: Tensor  # H
    total: Tensor  # J


def losses(
    logits: list[Tensor],
    values: Tensor,
    actions: Tensor,
    epsilon: Tensor,
    old_log_probability: Tensor,
    advantage: Tensor,
    returns: Tensor,
    options: UpdateOptions,
) -> Losses:
    """Compute ρ (9), clipped surrogate (10), value loss (11), entropy of the heads (12), total (13)."""
    ratio = torch.exp(log_probability(logits, actions, epsilon) - old_log_probability)
    clipped = ratio.clamp(1.0 - options.clip, 1.0 + options.clip)
    surrogate = torch.min(ratio * advantage, clipped * advantage).mean()
    value = 0.5 * (returns - values).square().mean()
    entropy = torch.stack([-(head.softmax(1) * head.log_softmax(1)).sum(1).mean() for head in logits]).sum()
    total = -surrogate + options.value_weight * value - options.entropy_weight * entropy
    return Losses(surrogate, value, entropy, total)


def descend(
    optimiser: torch.optim.Optimizer, network: nn.Module, loss: Losses, options: UpdateOptions
) -> None:
    """Take one step down the total loss, with a clipped gradient."""
    optimiser.zero_grad()
    loss.total.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(network.parameters(), options.gradient_norm)
    optimiser.step()


# ------------------------------------------------------------------------------------- K epochs


class Collected(Struct, frozen=True, kw_only=True):
    """The decisions to learn from, one row each."""

    actions: Tensor
    epsilon: Tensor
    old_log_probability: Tensor
    advantage: Tensor
    returns: Tensor


def learn(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    collected: Collected,
    options: UpdateOptions,
    *,
    shuffle: torch.Generator,
    forward: Callable[[Tensor], tuple[list[Tensor], Tensor]],
) -> Losses:
    """Run K epochs of minibatches and return the last losses; `forward` maps rows to logits and values."""
    for _ in range(options.epochs):
        order = torch.randperm(len(collected.actions), generator=shuffle)
        for some in torch.split(order, options.minibatch):
            logits, values = forward(some)
            last = losses(
                logits,
                values,
                collected.actions[some],
                collected.epsilon[some],
                collected.old_log_probability[some],
                collected.advantage[some],
                collected.returns[some],
                options,
            )
            descend(optimiser, network, last, options)
    return last
