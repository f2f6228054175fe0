"""The spec that all slimmable image networks share: four segments at four widths. Imports no torch."""

from slimsched.models.spec import ModelSpec, TensorSpec, every_plan
from slimsched.models.width import SEGMENTS, WIDTHS

CHOICES = tuple(str(width) for width in WIDTHS)


def image_model_spec(
    name: str,
    *,
    image_size: int,
    classes: int,
    labels: tuple[str, ...],
    follows_previous: bool,
    description: str,
) -> ModelSpec:
    """Describe a network that turns images into class logits, with any width in any segment."""
    segments = (CHOICES,) * SEGMENTS
    return ModelSpec(
        name=name,
        inputs=(TensorSpec(name="images", datatype="UINT8", shape=(3, image_size, image_size)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(classes,)),),
        segments=segments,
        plans=every_plan(segments),
        follows_previous=follows_previous,
        nested=True,
        labels=labels,
        description=description,
    )
