"""How to train: the file that `slim model train --config` reads."""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.training.augmentation import AugmentationRecipe


class NetworkRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Channels of the four segments at width 1.0, blocks in each, and the side images are scaled to."""

    channels: tuple[int, int, int, int] = (64, 128, 256, 512)
    blocks: tuple[int, int, int, int] = (2, 2, 2, 2)
    image_size: int = 32

    def shape(self, classes: int) -> NetworkShape:
        """The network for this many classes."""
        return NetworkShape(
            channels=self.channels, blocks=self.blocks, image_size=self.image_size, classes=classes
        )


class TrainingRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Schedule, optimizer and distillation.

    When `minutes` is given, the number of epochs is fixed once from the speed of the first ones. `tuples`
    says whether narrower tuples are trained at all. Targets, with the shares below:

        widest tuple    (1 - teacher_share) labels + teacher_share teacher
        all others      in_place_share widest tuple + (1 - in_place_share) teacher

    where the teacher is the run's own weight average or a model named on the command line. Soft targets are
    taken at `temperature`. `average_share` is the averaging horizon as a share of the run; `tuple_pool`
    limits how many pairs of random tuples are ever drawn (0: any).
    """

    epochs: int = 90
    minutes: float = 0.0
    batch: int = 512
    learning_rate: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: int = 5
    random_tuples: int = 2
    tuples: Literal["sandwich", "widest"] = "sandwich"
    tuple_pool: int = 0
    teacher: Literal["average", "model"] = "average"
    teacher_share: float = 0.0
    in_place_share: float = 1.0
    temperature: float = 1.0
    average_share: float = 0.03
    precision: Literal["bf16", "float32"] = "bf16"
    held_out: int = 0
    validate_every: int = 10
    checkpoint_every: int = 1
    seed: int = 0


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a training run does, data and device aside."""

    network: NetworkRecipe = NetworkRecipe()
    training: TrainingRecipe = TrainingRecipe()
    augmentation: AugmentationRecipe = AugmentationRecipe()


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe file."""
    try:
        recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}; name a TOML file") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}; see configs/train-cifar100.toml for the known keys") from None
    training = recipe.training
    for name in ("epochs", "batch", "learning_rate", "temperature", "validate_every", "checkpoint_every"):
        if getattr(training, name) <= 0:
            raise ConfigError(f"{path} [training] {name} = {getattr(training, name)}: must be above 0")
    for name in ("teacher_share", "in_place_share", "average_share"):
        if not 0 <= getattr(training, name) <= 1:
            raise ConfigError(f"{path} [training] {name} = {getattr(training, name)}: must be in [0, 1]")
    if recipe.network.image_size % 8:
        raise ConfigError(
            f"{path} [network] image_size = {recipe.network.image_size}: must be a multiple of 8"
        )
    return recipe
