"""The widths that a segment can run at, and all tuples of four widths.

All slimmable image networks share one spec: four segments at four widths. Nothing here needs torch.
"""

from functools import lru_cache
from itertools import product
from typing import Annotated

from msgspec import Meta

from slimsched.core.config import Count, WidthError
from slimsched.models.spec import ModelSpec, TensorSpec, every_plan

SEGMENTS = 4
PerSegment = Annotated[tuple[Count, ...], Meta(min_length=SEGMENTS, max_length=SEGMENTS)]
"""One count for each segment."""
WIDTHS: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

WIDTH_TUPLES: tuple[tuple[float, ...], ...] = tuple(product(WIDTHS, repeat=SEGMENTS))
"""All 256 width tuples; the first segment varies slowest. Tables by tuple use this order."""

_INDEX = {widths: index for index, widths in enumerate(WIDTH_TUPLES)}


def check_width(width: float) -> float:
    """Return the width; raise WidthError if no segment can run at it."""
    if width not in WIDTHS:
        known = ", ".join(f"{w:g}" for w in WIDTHS)
        raise WidthError(
            f"width {width:g} is not available: this model was trained at {known}; ask for one of these"
        )
    return width


def tuple_index(widths: tuple[float, ...]) -> int:
    """Position of a width tuple in WIDTH_TUPLES."""
    try:
        return _INDEX[widths]
    except KeyError:
        pass
    if len(widths) != SEGMENTS:
        raise WidthError(
            f"{len(widths)} widths given, but the network has {SEGMENTS} segments; give one width a segment"
        )
    for width in widths:
        check_width(width)
    return _INDEX[tuple(float(w) for w in widths)]


@lru_cache(maxsize=1024)
def format_widths(widths: tuple[float, ...]) -> str:
    """Write a width tuple the way a spec writes that plan: '0.25,0.5,0.75,1.0'."""
    return ",".join(str(width) for width in widths)


# -- The spec that all slimmable image networks share: four segments at four widths. Imports no torch.

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
