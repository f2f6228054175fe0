"""How fast a training step is, and how much CUDA graphs, fused kernels and both together gain.

python benchmarks/training.py [--batch 512] [--steps 60]      (CUDA; on a CPU it measures plain PyTorch only)
"""

import argparse
import copy
import time
from collections.abc import Callable

import numpy as np
import torch

from slimsched.models.data.image_set import Colours
from slimsched.models.slimresnet import operations
from slimsched.models.slimresnet.acceleration import fused_kernels
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.training.augmentation import AugmentationRecipe, augment
from slimsched.models.training.loop import make_optimizer
from slimsched.models.training.recipe import TrainingRecipe
from slimsched.models.training.sandwich import NARROWEST, WIDEST, Sandwich, draw_tuples, update_average
from slimsched.models.width import WIDTH_TUPLES

EPOCH_IMAGES = 50_000
PEAK_FLOP_PER_S = 790e12


def make_step(batch: int, *, capture: bool, device: torch.device) -> Callable[[], None]:
    """Return a full training step: augmentation, four passes, optimizer and average."""
    recipe = TrainingRecipe(
        batch=batch, tuple_pool=8, precision="bf16" if device.type == "cuda" else "float32"
    )
    net = SlimResNet().to(device)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = make_optimizer(net, recipe)
    sandwich = Sandwich(net, average, recipe, batch=batch, capture=capture)
    rng, generator = np.random.default_rng(0), torch.Generator(device).manual_seed(0)
    images = torch.randint(0, 256, (batch, 3, 32, 32), device=device, dtype=torch.uint8)
    labels = torch.randint(0, 100, (batch,), device=device)

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


def step_ms(step: Callable[[], None], *, warm_up: int, steps: int, device: torch.device) -> float:
    """Return the mean milliseconds per step, after a warm-up that selects kernels and captures graphs."""

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    run(warm_up)
    return 1e3 * run(steps) / steps


def use_fused(on: bool) -> None:
    """Switch the fused kernels on or off for all layers."""
    operations.fused_kernels = fused_kernels if on else (lambda tensor: None)  # type: ignore[attr-defined]


def floor_s() -> float:
    """Return the seconds per epoch for the matrix arithmetic alone: forward once, backward twice."""
    mean = float(np.mean([SLIM_RESNET.total_macs(widths) for widths in WIDTH_TUPLES]))
    macs = SLIM_RESNET.total_macs(WIDEST) + SLIM_RESNET.total_macs(NARROWEST) + 2 * mean
    return EPOCH_IMAGES * macs * 2 * 3 / PEAK_FLOP_PER_S


def main() -> None:
    """Print one row per variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    cuda = device.type == "cuda"
    print(f"{torch.cuda.get_device_name() if cuda else 'CPU'}, batch {options.batch}")
    print("| variant | ms per step | s per epoch | epochs per minute |\n|---|---|---|---|")
    variants = [("plain, eager", False, False)]
    if cuda:
        variants += [
            ("plain, graphs", False, True),
            ("fused, eager", True, False),
            ("fused, graphs", True, True),
        ]
    for name, fused, capture in variants:
        use_fused(fused)
        step = make_step(options.batch, capture=capture, device=device)
        ms = step_ms(step, warm_up=30 if cuda else 1, steps=options.steps, device=device)
        epoch_s = ms / 1e3 * EPOCH_IMAGES / options.batch
        print(f"| {name} | {ms:.1f} | {epoch_s:.2f} | {60 / epoch_s:.1f} |")
    print(f"arithmetic alone at {PEAK_FLOP_PER_S / 1e12:.0f} TFLOP/s: {floor_s():.2f} s per epoch")


if __name__ == "__main__":
    main()
