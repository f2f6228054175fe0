"""The shape of a SlimViT: what each of its segments computes, weighs and hands over. Imports no torch."""

from typing import ClassVar

from msgspec import Struct

from slimsched.core.config import Count
from slimsched.models.width import SEGMENTS, PerSegment


class VitRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Convolutions that cut an image into tokens, then transformer blocks, a quarter of them per segment.

    A segment's width sets how many attention heads and feed-forward units its blocks use, and in segment 0
    how many channels the convolutions use. `dim`, the length of a token, is the same at every width, so a
    segment's output does not depend on its width.

        image (3, S, S) -> stem[0] channels (S, S) -> stem[1] channels (S/2, S/2) -> tokens (T, dim)

    T is (S / token_pixels)^2; `token_pixels` is 2 or 4.
    """

    dim: Count = 320
    heads: Count = 8
    hidden: Count = 768
    blocks: PerSegment = (2, 2, 2, 2)
    stem: tuple[Count, Count] = (64, 128)
    token_pixels: Count = 4
    image_size: Count = 32


class VitShape(VitRecipe, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A slimmable vision transformer for some number of classes."""

    description: ClassVar[str] = "a slimmable vision transformer"
    follows_previous: ClassVar[bool] = False

    classes: Count = 100

    @property
    def tokens(self) -> int:
        """Tokens per image."""
        return (self.image_size // self.token_pixels) ** 2

    @property
    def head_dim(self) -> int:
        """Length of one head's queries, keys and values."""
        return self.dim // self.heads

    def heads_at(self, width: float) -> int:
        """Attention heads in use at a width."""
        return int(self.heads * width)

    def hidden_at(self, width: float) -> int:
        """Feed-forward units in use at a width."""
        return int(self.hidden * width)

    def stem_at(self, width: float) -> tuple[int, int]:
        """Channels of the two stages of convolutions in use at a width."""
        return int(self.stem[0] * width), int(self.stem[1] * width)

    def takes(self, segment: int) -> list[tuple[int, ...]]:
        """List the shapes that one image may have as a segment's input."""
        return [(3, self.image_size, self.image_size) if segment == 0 else (self.tokens, self.dim)]

    def macs(self, segment: int, previous: float | None, width: float) -> int:
        """Multiply-accumulates of one image through one segment; the previous width does not matter."""
        attention = 2 * self.tokens**2 * self.heads_at(width) * self.head_dim
        total = self.blocks[segment] * (self.tokens * self._block_weights(width) + attention)
        if segment == 0:
            pixels = self.image_size**2, (self.image_size // 2) ** 2, self.tokens
            total += sum(count * weights for count, weights in zip(pixels, self._kernels(width), strict=True))
        if segment == SEGMENTS - 1:
            total += 2 * self.tokens * self.dim + self.dim * self.classes
        return total

    def parameters(self, segment: int, width: float) -> int:
        """Weights of a segment's matrices and convolutions at a width."""
        total = self.blocks[segment] * self._block_weights(width)
        if segment == 0:
            total += sum(self._kernels(width)) + self.tokens * self.dim
        return total + (self.dim * (self.classes + 1) if segment == SEGMENTS - 1 else 0)

    def output_elements(self, segment: int, width: float) -> int:
        """Numbers per image in a segment's output (logits after the last segment)."""
        return self.classes if segment == SEGMENTS - 1 else self.tokens * self.dim

    def workspace(self, segment: int, width: float) -> int:
        """Numbers per image in memory at once while a segment runs."""
        return self.tokens * (self.dim + max(self.dim, self.hidden_at(width)))

    def moved(self, segment: int, width: float) -> int:
        """Numbers per image that a segment reads and writes."""
        inner = self.heads_at(width) * self.head_dim + self.hidden_at(width)
        convolved = 8 * self.stem_at(width)[0] * self.image_size**2 if segment == 0 else 0
        return self.blocks[segment] * self.tokens * (8 * self.dim + 6 * inner) + convolved

    def _block_weights(self, width: float) -> int:
        """Weights of one transformer block's matrices."""
        return self.dim * (4 * self.heads_at(width) * self.head_dim + 2 * self.hidden_at(width))

    def _kernels(self, width: float) -> tuple[int, int, int]:
        """Weights of the convolutions at full size, at half size, and of the one that makes tokens."""
        first, second = self.stem_at(width)
        return 27 * first + 18 * first**2, 10 * first * second + 9 * second**2, 9 * second * self.dim


SLIM_VIT = VitShape()
