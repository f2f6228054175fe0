"""SlimViT as an elastic model: four segments at four widths, in all 256 combinations. Imports no torch."""

from functools import cache

from slimsched.models.figures import ModelFigures, StepFigures
from slimsched.models.slimresnet.spec import CHOICES
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.spec import ModelSpec, TensorSpec, every_plan
from slimsched.models.width import SEGMENTS, WIDTHS

NAME = "slimvit"


@cache
def slimvit_spec(shape: VitShape, name: str = NAME, labels: tuple[str, ...] = ()) -> ModelSpec:
    """Describe a SlimViT of this shape; tokens have the same length at every width."""
    image = TensorSpec(name="images", datatype="UINT8", shape=(3, shape.image_size, shape.image_size))
    segments = (CHOICES,) * SEGMENTS
    return ModelSpec(
        name=name,
        inputs=(image,),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(shape.classes,)),),
        segments=segments,
        plans=every_plan(segments),
        follows_previous=False,
        nested=True,
        labels=labels,
        description="a slimmable vision transformer",
    )


@cache
def slimvit_figures(shape: VitShape) -> ModelFigures:
    """Compute what each step costs and hands on."""
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
