"""The shape of a slimmable residual network: cost, weights and output size of each segment.

Its spec is four segments at four widths in all 256 combinations; eight of them are the paper's. No torch.
"""

from functools import cache

from msgspec import Struct

from slimsched.core.config import Count
from slimsched.models.spec import SLIMRESNET, ModelFigures, ModelSpec, Path, PlanTree, StepFigures
from slimsched.models.width import SEGMENTS, WIDTHS, PerSegment, image_model_spec

# -- The eight width tuples of the paper's Tables I and II, and what the paper reports for them.

UNIFORM: tuple[tuple[float, ...], ...] = tuple((width,) * SEGMENTS for width in WIDTHS)
MIXED: tuple[tuple[float, ...], ...] = (
    (1.0, 0.75, 0.5, 0.25),
    (0.75, 1.0, 0.25, 0.5),
    (0.5, 0.25, 1.0, 0.75),
    (0.25, 0.5, 0.75, 1.0),
)
PAPER_PERCENT: dict[tuple[float, ...], float] = dict(
    zip((*UNIFORM, *MIXED), (70.30, 72.99, 74.93, 76.43, 71.35, 72.33, 74.53, 75.33), strict=True)
)


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


# -- SlimResNet as an elastic model: four segments at four widths, in all 256 combinations. Imports no torch.


@cache
def slimresnet_spec(shape: NetworkShape, name: str = SLIMRESNET, labels: tuple[str, ...] = ()) -> ModelSpec:
    """Describe a SlimResNet of this shape."""
    return image_model_spec(
        name,
        image_size=shape.image_size,
        classes=shape.classes,
        labels=labels,
        follows_previous=True,
        description="a slimmable residual network",
    )


@cache
def plan_tree(shape: NetworkShape) -> PlanTree:
    """Return the tree of all 256 plans."""
    return PlanTree(slimresnet_spec(shape).plans)


@cache
def slimresnet_figures(shape: NetworkShape) -> ModelFigures:
    """Compute the cost and output size of each step."""
    spec = slimresnet_spec(shape)

    def width(choice: int) -> float | None:
        return WIDTHS[choice] if choice >= 0 else None

    def step(segment: int, choice: int, previous: int) -> StepFigures:
        passes = 6 * shape.blocks[segment]  # each convolution and normalization reads and writes once
        moved = passes * shape.channels_at(segment, WIDTHS[choice]) * shape.side(segment) ** 2
        return StepFigures(shape.macs(segment, width(previous), WIDTHS[choice]), moved)

    places = spec.places()
    return ModelFigures(
        steps={one: step(*one) for one in spec.steps()},
        weights={(s, c): shape.parameters(s, WIDTHS[c]) for s, c in places},
        output={(s, c): shape.output_elements(s, WIDTHS[c]) for s, c in places},
        workspace={(s, c): shape.channels_at(s, WIDTHS[c]) * shape.side(s) ** 2 for s, c in places},
    )


def widths_of(path: Path) -> tuple[float, ...]:
    """Convert a path to widths."""
    return tuple(WIDTHS[choice] for choice in path)


def path_of(widths: tuple[float, ...]) -> Path:
    """Convert widths to a path."""
    return tuple(WIDTHS.index(width) for width in widths)
