"""Is skipping a block of SlimViT worth it beside narrowing? Shipped weights, nothing retrained.

    SLIM_DATA=DIR python benchmarks/vit_depth.py [--every 16] [--widths 1.0 0.5]

Leaves out one of the eight transformer blocks at a time, at uniform widths, and compares with the best plan
of the quality table that takes no more arithmetic, on the same images. Uses even test images only, those that
routers choose by. All training images were trained on, so none is held out.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slimsched.models.data import cifar
from slimsched.models.loading import load_model
from slimsched.models.shipped import shipped_folder
from slimsched.models.slimresnet.elastic import FoldedModel, FoldedSegment
from slimsched.models.slimvit.vit import FoldedTransformerBlock
from slimsched.serving.scenario.files import read_model

BATCH = 125


def layers_at(model: FoldedModel, width: str) -> list[torch.nn.Module]:
    """Return all layers of the network at one width, in order."""
    found: list[torch.nn.Module] = []
    for segment in range(len(model.spec.segments)):
        folded = model.segment(segment, width, None)
        assert isinstance(folded, FoldedSegment)
        found += list(folded.instance.layers)
    return found


def block_macs(model: FoldedModel, width: float) -> int:
    """Return the multiply-accumulates of one block: segments 1 and 2 hold two blocks and nothing else."""
    return model.shape.macs(1, None, width) // model.shape.blocks[1]


@torch.inference_mode()
def answers(model: FoldedModel, layers: list[torch.nn.Module], images: Tensor) -> list[Tensor]:
    """Return the classes named by the whole network, then without each block."""
    blocks = [at for at, layer in enumerate(layers) if isinstance(layer, FoldedTransformerBlock)]
    named: list[list[Tensor]] = [[] for _ in range(1 + len(blocks))]
    for start in range(0, len(images), BATCH):
        x = model.prepare((images[start : start + BATCH],))[0]
        before: list[Tensor] = []
        for layer in layers:
            before.append(x)
            x = layer(x)
        named[0].append(x.argmax(dim=1))
        for number, at in enumerate(blocks, start=1):
            y = before[at]
            for layer in layers[at + 1 :]:
                y = layer(y)
            named[number].append(y.argmax(dim=1))
    return [torch.cat(one) for one in named]


def main() -> None:
    """Print a row per width and block left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=16, help="use every so many-th test image; even")
    parser.add_argument("--widths", nargs="+", default=["1.0", "0.5"])
    given = parser.parse_args()
    folder = shipped_folder("slimvit")
    assert folder is not None
    model, served = load_model(folder), read_model("slimvit")
    assert isinstance(model, FoldedModel)
    test = cifar.read(Path(os.environ["SLIM_DATA"]), "test")
    among = np.arange(0, len(test.images), given.every)
    images, labels = torch.from_numpy(test.images[among]), torch.from_numpy(test.labels[among])
    plans = served.spec.plans
    macs = np.array([served.figures.plan_macs(served.spec, plan) for plan in plans])
    right = served.measured.of(among).by_plan
    print(f"{len(among)} even test images\n")
    print(
        "| width | left out | million MACs | accuracy, % | best plan with no more, % |\n|---|---|---|---|---|"
    )
    for width in given.widths:
        layers = layers_at(model, width)
        full = int(macs[plans.index(served.spec.path(width))])
        for number, named in enumerate(answers(model, layers, images)):
            cost = full - (block_macs(model, float(width)) if number else 0)
            best = right[macs <= cost].max()
            what = f"block {number}" if number else "nothing"
            accuracy = (named == labels).double().mean()
            print(
                f"| {width} | {what} | {cost / 1e6:.0f} | {100 * accuracy:.1f} | {100 * best:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
