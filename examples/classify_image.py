"""Classify a photograph at four widths: the same weights, with a sixteenth to all of the arithmetic.

python examples/classify_image.py              # the rocket and the coffee cup that scikit-image ships
python examples/classify_image.py photo.jpg    # your own photograph
"""

import sys
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps

from slimsched import PlanRun, trained_model


def photographs(paths: list[str]) -> Iterator[tuple[str, Image.Image]]:
    """Open the given files, or two freely licensed photographs of classes in CIFAR-100."""
    if paths:
        yield from ((path, Image.open(path)) for path in paths)
        return
    from skimage import data

    yield "rocket", Image.fromarray(data.rocket())
    yield "coffee cup", Image.fromarray(data.coffee())


def main(paths: list[str]) -> None:
    """Print the three most likely classes of each photograph at each width."""
    model = trained_model()  # the network that comes with the package
    run, spec, figures = PlanRun(model), model.spec, model.figures()
    plans = [spec.path(width) for width in ("0.25", "0.5", "0.75", "1.0")]
    size = spec.inputs[0].shape[1:]
    for name, image in photographs(paths):
        square = ImageOps.fit(image.convert("RGB"), size, Image.Resampling.BOX)
        pixels = torch.from_numpy(np.array(square).transpose(2, 0, 1)[None].copy())  # (1, 3, 32, 32)
        print(name)
        for plan, (logits,) in run.outputs((pixels,), plans):
            macs = sum(figures.steps[spec.step(plan[: length + 1])].macs for length in range(len(plan)))
            top = logits[0].softmax(dim=0).topk(3)
            guesses = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            text = ", ".join(f"{spec.labels[label]} {share:.0%}" for label, share in guesses)
            print(f"  width {spec.text(plan).split(',')[0]:<4}  {macs / 1e6:5.0f} M MACs   {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
