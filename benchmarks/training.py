"""How fast a training step is, and how much CUDA graphs, fused kernels and both together gain.

python benchmarks/training.py [--batch 512] [--steps 60]      (CUDA; on a CPU it measures plain PyTorch only)
"""

import argparse

import numpy as np
import torch
from training_step import EPOCH_IMAGES, make_step, seconds

from slimsched.models.shipped import default_figures, default_spec
from slimsched.models.slimresnet import resnet as layers
from slimsched.models.slimresnet.resnet import SlimResNet, fused_kernels
from slimsched.models.training.recipe import TrainingRecipe

PEAK_FLOP_PER_S = 790e12


def use_fused(on: bool) -> None:
    """Switch the fused kernels on or off for all layers."""
    layers.fused_kernels = fused_kernels if on else (lambda tensor: None)  # type: ignore[attr-defined]


def floor_s() -> float:
    """Return the seconds per epoch for the matrix arithmetic alone: forward once, backward twice."""
    spec, figures = default_spec(), default_figures()
    by_plan = {plan: figures.plan_macs(spec, plan) for plan in spec.plans}
    macs = by_plan[spec.widest] + by_plan[spec.narrowest] + 2 * float(np.mean(list(by_plan.values())))
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
        recipe = TrainingRecipe(batch=options.batch, tuple_pool=8)
        step = make_step(SlimResNet().to(device), recipe, capture=capture)
        seconds(step, 30 if cuda else 1, device)  # selects kernels and captures graphs
        step_s = seconds(step, options.steps, device) / options.steps
        epoch_s = step_s * EPOCH_IMAGES / options.batch
        print(f"| {name} | {1e3 * step_s:.1f} | {epoch_s:.2f} | {60 / epoch_s:.1f} |")
    print(f"arithmetic alone at {PEAK_FLOP_PER_S / 1e12:.0f} TFLOP/s: {floor_s():.2f} s per epoch")


if __name__ == "__main__":
    main()
