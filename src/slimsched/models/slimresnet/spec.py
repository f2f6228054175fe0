"""SlimResNet as an elastic model: four segments at four widths, in all 256 combinations. Imports no torch."""

from functools import cache

from slimsched.models.figures import ModelFigures, StepFigures
from slimsched.models.image_spec import image_model_spec
from slimsched.models.plan_tree import PlanTree
from slimsched.models.shipped_names import SLIMRESNET
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.spec import ModelSpec, Path
from slimsched.models.width import WIDTHS


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
