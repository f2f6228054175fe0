"""The shape of a SlimResNet or a SlimViT, and the spec and figures that follow from it. Imports no torch."""

from collections.abc import Mapping

from slimsched.models.figures import ModelFigures
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.slimresnet.spec import slimresnet_figures, slimresnet_spec
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.spec import slimvit_figures, slimvit_spec
from slimsched.models.spec import ModelSpec

Shape = NetworkShape | VitShape


def shape_kind(facts: Mapping[str, object]) -> type[Shape]:
    """Return the kind of shape that a card describes: a transformer has heads."""
    return VitShape if "heads" in facts else NetworkShape


def network_spec(shape: Shape, name: str, labels: tuple[str, ...]) -> ModelSpec:
    """Describe a network of this shape."""
    name = name.replace("/", "-")
    if isinstance(shape, VitShape):
        return slimvit_spec(shape, name, labels)
    return slimresnet_spec(shape, name, labels)


def network_figures(shape: Shape) -> ModelFigures:
    """Compute the cost and output size of each step."""
    return slimvit_figures(shape) if isinstance(shape, VitShape) else slimresnet_figures(shape)
