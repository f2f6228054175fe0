"""The shape of a slimmable vision transformer: cost, weights and output size of each segment."""

from functools import cache

from msgspec import Struct

from slimsched.core.config import Count
from slimsched.models.spec import SLIMVIT, ModelFigures, ModelSpec, StepFigures
from slimsched.models.width import SEGMENTS, WIDTHS, PerSegment, image_model_spec


class VitShape(Struct, frozen=True, kw_only=True):
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

    def macs(self, segment: int, previous: float | None, width: float) -> int:
        """Multiply-accumulates of one image through one segment; the previous width does not matter."""
        inner = self.heads_at(width) * self.head_dim
        linear = self.tokens * self.dim * (4 * inner + 2 * self.hidden_at(width))
        attention = 2 * self.tokens**2 * inner
        total = self.blocks[segment] * (linear + attention)
        if segment == 0:
            total += self._stem_macs(width)
        if segment == SEGMENTS - 1:
            total += 2 * self.tokens * self.dim + self.dim * self.classes
        return total

    def total_macs(self, widths: tuple[float, ...]) -> int:
        """Multiply-accumulates of one image through all segments."""
        return sum(self.macs(segment, None, width) for segment, width in enumerate(widths))

    def parameters(self, segment: int, width: float) -> int:
        """Weights of a segment's matrices and convolutions at a width."""
        inner = self.heads_at(width) * self.head_dim
        total = self.blocks[segment] * self.dim * (4 * inner + 2 * self.hidden_at(width))
        if segment == 0:
            first, second = self.stem_at(width)
            total += 27 * first + 18 * first**2 + 10 * first * second + 9 * second**2
            total += 9 * second * self.dim + self.tokens * self.dim
        return total + (self.dim * (self.classes + 1) if segment == SEGMENTS - 1 else 0)

    def output_elements(self, segment: int, width: float) -> int:
        """Numbers per image in a segment's output (logits after the last segment)."""
        return self.classes if segment == SEGMENTS - 1 else self.tokens * self.dim

    @property
    def image_bytes(self) -> int:
        """Bytes of one raw image."""
        return 3 * self.image_size**2

    def _stem_macs(self, width: float) -> int:
        first, second = self.stem_at(width)
        large, small = self.image_size**2, (self.image_size // 2) ** 2
        first_stage = (27 * first + 18 * first**2) * large
        second_stage = (10 * first * second + 9 * second**2) * small
        return first_stage + second_stage + 9 * second * self.dim * self.tokens


SLIM_VIT = VitShape()


# -- SlimViT as an elastic model: four segments at four widths, in all 256 combinations. Imports no torch.


@cache
def slimvit_spec(shape: VitShape, name: str = SLIMVIT, labels: tuple[str, ...] = ()) -> ModelSpec:
    """Describe a SlimViT of this shape; tokens have the same length at every width."""
    return image_model_spec(
        name,
        image_size=shape.image_size,
        classes=shape.classes,
        labels=labels,
        follows_previous=False,
        description="a slimmable vision transformer",
    )


@cache
def slimvit_figures(shape: VitShape) -> ModelFigures:
    """Compute the cost and output size of each step."""
    spec = slimvit_spec(shape)
    tokens = shape.tokens * shape.dim

    def moved(segment: int, width: float) -> int:
        inner = shape.heads_at(width) * shape.head_dim + shape.hidden_at(width)
        convolved = 8 * shape.stem_at(width)[0] * shape.image_size**2 if segment == 0 else 0
        return shape.blocks[segment] * (8 * tokens + 6 * shape.tokens * inner) + convolved

    places = spec.places()
    return ModelFigures(
        steps={
            (segment, choice, previous): StepFigures(
                shape.macs(segment, None, WIDTHS[choice]), moved(segment, WIDTHS[choice])
            )
            for segment, choice, previous in spec.steps()
        },
        weights={(s, c): shape.parameters(s, WIDTHS[c]) for s, c in places},
        output={(s, c): shape.output_elements(s, WIDTHS[c]) for s, c in places},
        workspace={
            (s, c): tokens + shape.tokens * max(shape.dim, shape.hidden_at(WIDTHS[c])) for s, c in places
        },
    )
