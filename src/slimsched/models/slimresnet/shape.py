"""The shape of a SlimResNet: what each of its segments computes, weighs and hands over. Imports no torch."""

from typing import ClassVar

from msgspec import Struct

from slimsched.core.config import Count
from slimsched.models.width import SEGMENTS, WIDTHS, PerSegment

# -- The eight width tuples of the paper's Tables I and II, and what the paper reports for them.

UNIFORM: tuple[tuple[float, ...], ...] = tuple((width,) * SEGMENTS for width in WIDTHS)
PAPER_PERCENT: dict[tuple[float, ...], float] = {
    **dict(zip(UNIFORM, (70.30, 72.99, 74.93, 76.43), strict=True)),
    (1.0, 0.75, 0.5, 0.25): 71.35,
    (0.75, 1.0, 0.25, 0.5): 72.33,
    (0.5, 0.25, 1.0, 0.75): 74.53,
    (0.25, 0.5, 0.75, 1.0): 75.33,
}


class NetworkRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels of the four segments at width 1.0, blocks in each, and the image size in pixels."""

    channels: PerSegment = (64, 128, 256, 512)
    blocks: PerSegment = (2, 2, 2, 2)
    image_size: Count = 32


class NetworkShape(NetworkRecipe, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A residual network for some number of classes.

    Segment 0 holds the stem, segment 3 the classifier. Each segment after the first halves the image.
    """

    description: ClassVar[str] = "a slimmable residual network"
    follows_previous: ClassVar[bool] = True

    classes: Count = 100

    def channels_at(self, segment: int, width: float | None) -> int:
        """Output channels of a segment at a width; segment -1 is the image."""
        return 3 if segment < 0 or width is None else int(self.channels[segment] * width)

    def side(self, segment: int) -> int:
        """Height and width of a segment's output in pixels."""
        return self.image_size >> segment if segment > 0 else self.image_size

    def takes(self, segment: int) -> list[tuple[int, ...]]:
        """List the shapes that one image may have as a segment's input."""
        if segment == 0:
            return [(3, self.image_size, self.image_size)]
        side = self.side(segment - 1)
        return [(self.channels_at(segment - 1, width), side, side) for width in WIDTHS]

    def macs(self, segment: int, previous: float | None, width: float) -> int:
        """Multiply-accumulates of one image through one segment."""
        into, pixels = self.channels_at(segment - 1, previous), self.side(segment) ** 2
        return pixels * self._kernels(segment, into, width) + self._classifier(segment, width)

    def parameters(self, segment: int, width: float) -> int:
        """Weights of a segment at a width, with its input at full width."""
        into = self.channels_at(segment - 1, 1.0)
        return self._kernels(segment, into, width) + self._classifier(segment, width)

    def output_elements(self, segment: int, width: float) -> int:
        """Numbers per image in a segment's output (logits after the last segment)."""
        return self.classes if segment == SEGMENTS - 1 else self.workspace(segment, width)

    def workspace(self, segment: int, width: float) -> int:
        """Numbers per image in memory at once while a segment runs: one of its activations."""
        return self.channels_at(segment, width) * self.side(segment) ** 2

    def moved(self, segment: int, width: float) -> int:
        """Numbers per image read and written: once by each convolution and each normalization."""
        return 6 * self.blocks[segment] * self.workspace(segment, width)

    def _kernels(self, segment: int, into: int, width: float) -> int:
        """Weights of a segment's convolutions, where its input has `into` channels."""
        out = self.channels_at(segment, width)
        inner = 9 * out * out
        if segment == 0:
            return 9 * into * out + 2 * self.blocks[0] * inner  # the stem, then blocks
        return (9 + 1) * into * out + (2 * self.blocks[segment] - 1) * inner  # a shortcut of 1 x 1 pixels

    def _classifier(self, segment: int, width: float) -> int:
        return self.channels_at(segment, width) * self.classes if segment == SEGMENTS - 1 else 0


SLIM_RESNET = NetworkShape()
