"""The shape of a slimmable residual network: cost, weights and output size of each segment."""

from msgspec import Struct

from slimsched.core.config import Count
from slimsched.models.width import SEGMENTS, PerSegment


class NetworkShape(Struct, frozen=True, kw_only=True):
    """A residual network of four segments; `channels` lists each segment's channels at width 1.0.

    Segment 0 holds the stem, segment 3 the classifier. Each segment after the first halves the image.
    """

    channels: PerSegment = (64, 128, 256, 512)
    blocks: PerSegment = (2, 2, 2, 2)
    image_size: Count = 32
    classes: Count = 100

    def channels_at(self, segment: int, width: float | None) -> int:
        """Output channels of a segment at a width; segment -1 is the image."""
        return 3 if segment < 0 or width is None else int(self.channels[segment] * width)

    def side(self, segment: int) -> int:
        """Height and width of a segment's output in pixels."""
        return self.image_size >> segment if segment > 0 else self.image_size

    def macs(self, segment: int, previous: float | None, width: float) -> int:
        """Multiply-accumulates of one image through one segment."""
        out, pixels = self.channels_at(segment, width), self.side(segment) ** 2
        inner = 9 * out * out * pixels
        if segment == 0:
            total = 9 * 3 * out * pixels + 2 * self.blocks[0] * inner
        else:
            into = self.channels_at(segment - 1, previous)
            total = (9 + 1) * into * out * pixels + (2 * self.blocks[segment] - 1) * inner
        return total + (out * self.classes if segment == SEGMENTS - 1 else 0)

    def total_macs(self, widths: tuple[float, ...]) -> int:
        """Multiply-accumulates of one image through all segments."""
        before = (None, *widths[:-1])
        return sum(self.macs(s, p, w) for s, (p, w) in enumerate(zip(before, widths, strict=True)))

    def parameters(self, segment: int, width: float) -> int:
        """Weights of a segment at a width, with its input at full width."""
        out = self.channels_at(segment, width)
        inner = 9 * out * out
        if segment == 0:
            total = 9 * 3 * out + 2 * self.blocks[0] * inner
        else:
            total = 10 * self.channels[segment - 1] * out + (2 * self.blocks[segment] - 1) * inner
        return total + (out * self.classes if segment == SEGMENTS - 1 else 0)

    def output_elements(self, segment: int, width: float) -> int:
        """Numbers per image in a segment's output (logits after the last segment)."""
        if segment == SEGMENTS - 1:
            return self.classes
        return self.channels_at(segment, width) * self.side(segment) ** 2

    @property
    def image_bytes(self) -> int:
        """Bytes of one raw image."""
        return 3 * self.image_size**2


SLIM_RESNET = NetworkShape()
