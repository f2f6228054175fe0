"""The optimizers that a recipe can name."""

import torch
from torch import Tensor

from slimsched.models.network import SlimNetwork
from slimsched.models.training.recipe import TrainingRecipe

STATE_NAMES = ("momentum_buffer", "exp_avg", "exp_avg_sq", "step")
"""The optimizer state of each parameter, by PyTorch's names."""


def make_optimizer(net: SlimNetwork, training: TrainingRecipe) -> torch.optim.Optimizer:
    """Make SGD with Nesterov momentum, or AdamW. Weight decay applies to weights only."""
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
    """Whether weight decay applies: yes for matrices and convolutions, no for all other parameters."""
    return name.endswith("weight") and parameter.dim() > 1
