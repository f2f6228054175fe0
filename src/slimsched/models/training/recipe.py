"""The training recipe: the file that `slim model train --config` reads."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, structs

from slimsched.kernel.errors import ConfigError
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.training.augmentation import AugmentationRecipe


class NetworkRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels of the four segments at width 1.0, blocks in each, and the image size in pixels."""

    channels: tuple[int, int, int, int] = (64, 128, 256, 512)
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    image_size: int = 32

    def shape(self, classes: int) -> NetworkShape:
        """Return the shape of the network for this many classes."""
        return NetworkShape(
            channels=self.channels, blocks=self.blocks, image_size=self.image_size, classes=classes
        )


class VitRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A SlimViT at width 1.0: see `VitShape` for what the numbers mean."""

    dim: int = 320
    heads: int = 8
    hidden: int = 768
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    stem: tuple[int, int] = (64, 128)
    token_pixels: int = 4
    image_size: int = 32

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
    `average_share` is the averaging horizon as a share of the run. `tuple_pool` limits the number of
    different random tuple pairs (0: no limit). `momentum` is also AdamW's first beta, `square_momentum` its
    second. `label_smoothing` spreads that share of each label over all classes. `compile` runs transformer
    blocks through torch.compile. `held_out` is the share (below 1) or number of images to score on instead
    of training on them. The default is a fifth if the data has no test images, else none.
    """

    epochs: int = 90
    least_steps: int = 0
    minutes: float = 0.0
    batch: int = 512
    learning_rate: float = 0.2
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    square_momentum: float = 0.99
    weight_decay: float = 5e-4
    warmup_epochs: int = 5
    random_tuples: int = 2
    tuples: Literal["sandwich", "widest"] = "sandwich"
    tuple_pool: int = 0
    teacher: Literal["average", "model"] = "average"
    teacher_share: float = 0.0
    label_share: float = 1.0
    in_place_share: float = 1.0
    temperature: float = 1.0
    label_smoothing: float = 0.0
    average_share: float = 0.03
    precision: Literal["bf16", "float32"] = "bf16"
    compile: bool = False
    held_out: float | None = None
    validate_every: int = 10
    checkpoint_every: int = 1
    seed: int = 0


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
        recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}; name a TOML file") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}; see configs/train-cifar100.toml for the known keys") from None
    return check(recipe, str(path))


def override(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Change single keys. Each change is TABLE.KEY=VALUE, with the value written as in TOML."""
    tables: dict[str, dict[str, object]] = msgspec.to_builtins(recipe)
    for change in changes:
        try:
            for table, values in tomllib.loads(change).items():
                tables[table] = (tables.get(table) or {}) | values
        except (tomllib.TOMLDecodeError, TypeError) as error:
            raise ConfigError(f"cannot read '{change}' ({error}); write training.batch=256") from None
    try:
        return check(msgspec.convert(tables, Recipe), "--set")
    except msgspec.ValidationError as error:
        raise ConfigError(f"--set: {error}; see configs/train-cifar100.toml for the known keys") from None


def check(recipe: Recipe, path: str) -> Recipe:
    """Raise ConfigError for values that no run can work with."""
    training = recipe.training
    for name in ("epochs", "batch", "learning_rate", "temperature", "validate_every", "checkpoint_every"):
        if getattr(training, name) <= 0:
            raise ConfigError(f"{path} [training] {name} = {getattr(training, name)}: must be above 0")
    for name in ("teacher_share", "label_share", "in_place_share", "label_smoothing", "average_share"):
        if not 0 <= getattr(training, name) <= 1:
            raise ConfigError(f"{path} [training] {name} = {getattr(training, name)}: must be in [0, 1]")
    if recipe.image_size % 8:
        raise ConfigError(f"{path}: image_size = {recipe.image_size}: must be a multiple of 8")
    if training.held_out is not None and training.held_out < 0:
        raise ConfigError(f"{path} [training] held_out = {training.held_out}: must not be below 0")
    return recipe
