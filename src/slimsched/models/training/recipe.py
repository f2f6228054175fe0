"""The training recipe: the file that `slim model train --config` reads."""

from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from slimsched.core.config import (
    Amount,
    ConfigError,
    Count,
    CountOrZero,
    PartialShare,
    PositiveAmount,
    Seed,
    Share,
    Whole,
    convert,
    read_toml,
)
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.training.augmentation import AugmentationRecipe


class NetworkRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels of the four segments at width 1.0, blocks in each, and the image size in pixels."""

    channels: tuple[Count, Count, Count, Count] = (64, 128, 256, 512)
    blocks: tuple[Count, Count, Count, Count] = (2, 2, 2, 2)
    image_size: Count = 32

    def shape(self, classes: int) -> NetworkShape:
        """Return the shape of the network for this many classes."""
        return NetworkShape(
            channels=self.channels, blocks=self.blocks, image_size=self.image_size, classes=classes
        )


class VitRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SlimViT at width 1.0: see `VitShape` for what the numbers mean."""

    dim: Count = 320
    heads: Count = 8
    hidden: Count = 768
    blocks: tuple[Count, Count, Count, Count] = (2, 2, 2, 2)
    stem: tuple[Count, Count] = (64, 128)
    token_pixels: Count = 4
    image_size: Count = 32

    def shape(self, classes: int) -> VitShape:
        """Return the shape of the network for this many classes."""
        return VitShape(**structs.asdict(self), classes=classes)


class TrainingRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Schedule, optimizer and distillation.

    With `minutes`, the speed of the first epochs decides how many epochs the run has. `tuples` says whether
    narrower tuples are trained at all. The training targets are:

        widest tuple    (1 - teacher_share) labels + teacher_share teacher
        all others      label_share labels
                        + (1 - label_share) (in_place_share widest tuple + (1 - in_place_share) teacher)

    The teacher is the run's own weight average or a model named on the command line. Soft targets use
    `temperature`. Without a teacher model, keep `label_share` high: an untrained widest tuple has nothing to
    teach, and with little data it keeps every other tuple at chance level.

    `least_steps` adds epochs if `epochs` gives fewer steps than this.
    `narrow_share` is the share of random tuples that are drawn among those that begin narrow: they carry most
    requests where a model stops when sure. `average_share` is the averaging horizon as a share of the run.
    `tuple_pool` limits the number of different random tuple pairs (0: no limit). `momentum` is also AdamW's
    first beta, `square_momentum` its second. `label_smoothing` spreads that share of each label over all
    classes. `compile` runs transformer blocks through torch.compile. `held_out` is the share (below 1) or
    number of images to score on instead of training on them. The default is a fifth if the data has no test
    images, else none.
    """

    epochs: Count = 90
    least_steps: Whole = 0
    minutes: Amount = 0.0
    batch: Count = 512
    learning_rate: PositiveAmount = 0.2
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: PartialShare = 0.9
    square_momentum: PartialShare = 0.99
    weight_decay: Amount = 5e-4
    warmup_epochs: CountOrZero = 5
    random_tuples: CountOrZero = 2
    tuples: Literal["sandwich", "widest"] = "sandwich"
    tuple_pool: Whole = 0
    narrow_share: Share = 0.0
    teacher: Literal["average", "model"] = "average"
    teacher_share: Share = 0.0
    label_share: Share = 1.0
    in_place_share: Share = 1.0
    temperature: PositiveAmount = 1.0
    label_smoothing: Share = 0.0
    average_share: Share = 0.03
    precision: Literal["bf16", "float32"] = "bf16"
    compile: bool = False
    held_out: Amount | None = None
    validate_every: Count = 10
    checkpoint_every: Count = 1
    seed: Seed = 0


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a training run, except data and device.

    The network is a SlimViT if the file has a table `vit`, else the SlimResNet in `network`.
    """

    network: NetworkRecipe = NetworkRecipe()
    vit: VitRecipe | None = None
    training: TrainingRecipe = TrainingRecipe()
    augmentation: AugmentationRecipe = AugmentationRecipe()

    @property
    def image_size(self) -> int:
        """Height and width that images are scaled to."""
        return (self.vit or self.network).image_size


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe file."""
    try:
        raw = read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}; name a TOML file") from None
    return _recipe(raw, str(path))


def _recipe(raw: dict[str, Any], where: str) -> Recipe:
    try:
        return check(convert(raw, Recipe, where), where)
    except ConfigError as error:
        raise ConfigError(f"{error}; see configs/train-cifar100.toml for the known keys") from None


def check(recipe: Recipe, path: str) -> Recipe:
    """Raise ConfigError for values that no run can work with."""
    if recipe.image_size % 8:
        raise ConfigError(f"{path}: image_size = {recipe.image_size}: must be a multiple of 8")
    return recipe
