"""How fast a training step of SlimViT is, for several shapes, eager, with CUDA graphs and compiled.

python benchmarks/training_vit.py [--batch 512] [--steps 40] [--minutes 16]   (a CPU measures eager only)

One step is what training does: augmentation, the teacher's forward pass, four passes, optimizer, average.
"""

import argparse
from collections.abc import Callable, Iterator

import torch
from training_step import EPOCH_IMAGES, make_step, seconds

from slimsched.models.loading import load
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.training.recipe import TrainingRecipe
from slimsched.models.width import SEGMENTS

SHAPES = {
    "64 tokens, dim 320": VitShape(),
    "64 tokens, dim 256, hidden 1024": VitShape(dim=256, hidden=1024),
    "64 tokens, dim 384, hidden 768": VitShape(dim=384, hidden=768),
    "256 tokens, dim 256, hidden 512": VitShape(dim=256, hidden=512, token_pixels=2),
}


def make_vit_step(
    shape: VitShape, batch: int, *, capture: bool, compiled: bool, device: torch.device
) -> Callable[[], None]:
    """Return a training step of a SlimViT that learns from the shipped model."""
    recipe = TrainingRecipe(
        batch=batch,
        optimizer="adamw",
        learning_rate=1e-3,
        tuple_pool=4,
        teacher="model",
        teacher_share=0.7,
        label_share=0.0,
        in_place_share=0.5,
    )
    net = SlimVit(shape).to(device)
    if compiled:
        net.use_compiled_blocks()
    return make_step(net, recipe, capture=capture, teacher=load().net.to(device))


def variants(cuda: bool) -> Iterator[tuple[str, VitShape, bool, bool]]:
    """Name, shape, graphs, compiled; the eager row and the compiled row for the first shape only."""
    first = next(iter(SHAPES))
    if not cuda:
        yield first + ", eager", SHAPES[first], False, False
        return
    for name, shape in SHAPES.items():
        yield name + ", graphs", shape, True, False
    yield first + ", graphs, compiled", SHAPES[first], True, True
    yield first + ", eager", SHAPES[first], False, False


def main() -> None:
    """Print one row per variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=25)
    parser.add_argument("--minutes", type=float, default=16)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, batch {options.batch}")
    print("| variant | GMAC | warm-up s | ms per step | steps per s | s per epoch | epochs |", flush=True)
    print("|---|---|---|---|---|---|---|")
    for name, shape, capture, compiled in variants(device.type == "cuda"):
        try:
            step = make_vit_step(shape, options.batch, capture=capture, compiled=compiled, device=device)
            warm_up_s = seconds(step, options.warm_up, device)
            step_s = seconds(step, options.steps, device) / options.steps
        except Exception as error:  # one variant that fails must not hide the others
            print(f"| {name} | failed: {type(error).__name__}: {str(error)[:200]} |", flush=True)
            continue
        epoch_s = step_s * (EPOCH_IMAGES // options.batch)
        macs = sum(shape.macs(segment, None, 1.0) for segment in range(SEGMENTS)) / 1e9
        print(
            f"| {name} | {macs:.3f} | {warm_up_s:.1f} | {1e3 * step_s:.1f} | {1 / step_s:.1f} "
            f"| {epoch_s:.2f} | {60 * options.minutes / epoch_s:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
