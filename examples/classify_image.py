"""Classify a photograph at four widths: the same weights, with a sixteenth to all of the arithmetic.

python examples/classify_image.py              # the rocket and the coffee cup that scikit-image ships
python examples/classify_image.py photo.jpg    # your own photograph
"""

import sys
from collections.abc import Iterator

from PIL import Image

from slimsched.models.data.image_folder import square
from slimsched.models.evaluation import Evaluator
from slimsched.models.slimresnet.weights import load
from slimsched.models.width import SEGMENTS, WIDTHS


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
    model = load()
    evaluator = Evaluator(model.net, model.card.colours)
    tuples = [(width,) * SEGMENTS for width in WIDTHS]
    for name, image in photographs(paths):
        pixels = square(image, model.card.shape.image_size)[None]  # (1, 3, 32, 32)
        print(name)
        for widths, logits in evaluator.logits(pixels, tuples).items():
            top = logits[0].softmax(dim=0).topk(3)
            guesses = zip(top.indices.tolist(), top.values.tolist(), strict=True)
            text = ", ".join(f"{model.card.classes[label]} {share:.0%}" for label, share in guesses)
            print(f"  width {widths[0]:<4}  {model.card.shape.total_macs(widths) / 1e6:5.0f} M MACs   {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
