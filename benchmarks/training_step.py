"""A full training step to time: augmentation, four passes, optimizer and average."""

import copy
import time
from collections.abc import Callable

import numpy as np
import torch
from msgspec.structs import replace

from slimsched.models.data.images import Colours
from slimsched.models.network import SlimNetwork
from slimsched.models.training.loop import Sandwich, draw_tuples, make_optimizer, update_average
from slimsched.models.training.recipe import AugmentationRecipe, TrainingRecipe, augment

EPOCH_IMAGES = 50_000


def make_step(
    net: SlimNetwork, recipe: TrainingRecipe, *, capture: bool, teacher: SlimNetwork | None = None
) -> Callable[[], None]:
    """Return a step of this network on random images; it learns from its average if there is no teacher."""
    device = next(net.parameters()).device
    recipe = replace(recipe, precision="bf16" if device.type == "cuda" else "float32")
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = make_optimizer(net, recipe)
    sandwich = Sandwich(net, teacher or average, recipe, batch=recipe.batch, capture=capture)
    rng, generator = np.random.default_rng(0), torch.Generator(device).manual_seed(0)
    images = torch.randint(0, 256, (recipe.batch, 3, 32, 32), device=device, dtype=torch.uint8)
    labels = torch.randint(0, 100, (recipe.batch,), device=device)

    def step() -> None:
        x, targets = augment(
            images,
            labels,
            classes=100,
            colours=Colours(),
            recipe=AugmentationRecipe(distort_share=0.5, mixup_share=0.2),
            generator=generator,
        )
        sandwich(x, targets, draw_tuples(recipe, rng))
        optimizer.step()
        update_average(average, net, keep=0.99)

    return step


def seconds(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Return the wall time of some steps."""
    started_s = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_s
