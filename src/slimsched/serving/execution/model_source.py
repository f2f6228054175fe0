"""Where served models come from: the shipped SlimResNet, or a model folder."""

from pathlib import Path

from slimsched.kernel.errors import ConfigError
from slimsched.models.quality import QualityTable, read_quality
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.slimresnet.spec import NAME, plan_tree, slimresnet_figures, slimresnet_spec
from slimsched.serving.domain.served_model import ServedModel


def shipped_model(quality: QualityTable | None = None) -> ServedModel:
    """The SlimResNet that comes with the package, with its measured quality or another table."""
    table = quality or read_quality(shipped.quality_path(), plan_tree(SLIM_RESNET))
    return ServedModel(slimresnet_spec(SLIM_RESNET), table, slimresnet_figures(SLIM_RESNET))


def read_model(source: str, beside: Path) -> ServedModel:
    """Read a model: the shipped one by its name, any other from its folder."""
    if source == NAME:
        return shipped_model()
    raise ConfigError(f"model '{source}' is neither '{NAME}' nor a model folder in {beside.name or '.'}")
