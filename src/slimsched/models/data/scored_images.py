"""The images that a score is measured on, with a description of them."""

from pathlib import Path

from msgspec import Struct

from slimsched.models.data import held_out
from slimsched.models.data.dataset import has_test_images, open_images
from slimsched.models.data.image_set import ImageSet


class ScoredImages(Struct, frozen=True, kw_only=True):
    """Images and what they are: 'test images', 'held-out pictures', 'training images', ..."""

    images: ImageSet
    kind: str

    @property
    def description(self) -> str:
        """Return a text such as '60 held-out pictures'."""
        return f"{len(self.images)} {self.kind}"


def scored_images(
    data: Path, *, side: int, classes: tuple[str, ...], run: Path | None, everything: bool = False
) -> ScoredImages:
    """Choose the images to score a model on.

    These are the data's test images if it has any, else the pictures that the model's run held out, else all
    images. In the last case the model may have been trained on them, and the description says so.
    """
    own_test = has_test_images(data)
    images = open_images(data, "test" if own_test else "train", side=side, classes=classes)
    if own_test:
        return ScoredImages(images=images, kind="test images")
    names = held_out.read_names(run) if run is not None else frozenset()
    if everything:
        kind = "pictures, held-out and training images together" if names else "pictures"
        return ScoredImages(images=images, kind=kind)
    if names:
        return ScoredImages(images=held_out.only(images, names), kind="held-out pictures")
    kind = "training images (the model was trained without held-out pictures)"
    return ScoredImages(images=images, kind=kind)
