"""The optimizers that a recipe can name."""

import torch
from torch import Tensor

from slimsched.models.network import SlimNetwork
from slimsched.models.training.recipe import TrainingRecipe

STATE_NAMES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")
"""What the optimizers remember of each parameter, by PyTorch's own names."""


def make_optimizer(net: SlimNetwork, training: TrainingRecipe) -> torch.optim.Optimizer:
    """Nesterov momentum or AdamW; weights decay, gains, shifts, biases and positions do not."""
    named = list(net.named_parameters())
    decayed: list[Tensor] = [parameter for name, parameter in named if decays(name, parameter)]
    others: list[Tensor] = [parameter for name, parameter in named if not decays(name, parameter)]
    groups = [
        {"params": decayed, "weight_decay": training.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = next(net.parameters()).is_cuda
    if training.optimizer == "adamw":
        betas = (training.momentum, training.square_momentum)
        return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, fused=fused)
    return torch.optim.SGD(
        groups, lr=training.learning_rate, momentum=training.momentum, nesterov=True, fused=fused
    )


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices and convolutions, not to norms, gains, scales and biases."""
    return name.endswith("weight") and parameter.dim() > 1
