"""SlimViT as an elastic model: four segments at four widths, in all 256 combinations. Imports no torch."""

from functools import cache

from slimsched.models.figures import ModelFigures, StepFigures
from slimsched.models.image_spec import image_model_spec
from slimsched.models.shipped_names import SLIMVIT
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.spec import ModelSpec
from slimsched.models.width import WIDTHS


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
