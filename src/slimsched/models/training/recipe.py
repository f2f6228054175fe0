"""The training recipe: the file that `slim model train --config` reads."""

import math
from pathlib import Path
from typing import Literal

import torch
from msgspec import Struct, structs
from torch import Generator, Tensor
from torch.nn import functional as F  # noqa: N812

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
from slimsched.models.data.images import Colours
from slimsched.models.slimresnet.shape import NetworkRecipe, NetworkShape
from slimsched.models.slimvit.shape import VitRecipe, VitShape

# -- Augmentation of a whole batch on its device: crop, flip, one random distortion, then CutMix or Mixup.
#
# All random numbers come from the given generator, so the same seed gives the same batch.


class AugmentationRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How strongly a batch is changed; each share is a probability per image."""

    crop_padding: CountOrZero = 4
    flip_share: Share = 0.5
    distort_share: Share = 0.0
    cutmix_share: Share = 0.5
    mixup_share: Share = 0.0


def augment(
    images: Tensor,
    labels: Tensor,
    *,
    classes: int,
    colours: Colours,
    recipe: AugmentationRecipe,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Raw images (N, 3, S, S) and labels (N,) -> normalized images (N, 3, S, S), targets (N, classes)."""
    x = _crop_and_flip(images, recipe, generator).float() / 255  # (N, 3, S, S)
    if recipe.distort_share:
        x = distort(x, share=recipe.distort_share, generator=generator)
    x = normalize(x, colours)
    targets = F.one_hot(labels, classes).float()  # (N, classes)
    if recipe.cutmix_share or recipe.mixup_share:
        return _mix(x, targets, recipe, generator)
    return x, targets


def normalize(pixels: Tensor, colours: Colours) -> Tensor:
    """Pixels in [0, 1] -> mean 0 and deviation 1 for each colour."""
    mean = torch.tensor(colours.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(colours.std, device=pixels.device)[:, None, None]
    return (pixels - mean) / std


def _crop_and_flip(images: Tensor, recipe: AugmentationRecipe, generator: Generator) -> Tensor:
    """Shift each image by up to the padding (with mirrored edges), and flip some."""
    n, side, pad = len(images), images.shape[-1], recipe.crop_padding
    device = images.device
    shift = torch.randint(-pad, pad + 1, (2, n, 1), generator=generator, device=device)
    index = torch.arange(side, device=device) + shift  # (2, N, S)
    index = (index.abs() - 2 * (index - side + 1).clamp(min=0)).abs()  # mirrored at both edges
    rows, columns = index[0], index[1]
    flipped = torch.rand((n, 1), generator=generator, device=device) < recipe.flip_share
    columns = torch.where(flipped, columns.flip(1), columns)
    picked = torch.arange(n, device=device)[:, None, None]
    channels_last = images.permute(0, 2, 3, 1)[picked, rows[:, :, None], columns[:, None, :]]  # (N, S, S, 3)
    return channels_last.permute(0, 3, 1, 2)


def distort(x: Tensor, *, share: float, generator: Generator) -> Tensor:
    """Change some images by one random operation of random strength (after TrivialAugment).

    Operations: rotate, shear x, shear y, move x, move y, brightness, contrast, colour, posterize, solarize.
    """
    n, device = len(x), x.device
    operation = torch.randint(0, 10, (n,), generator=generator, device=device)
    strength = torch.rand((n,), generator=generator, device=device) * 2 - 1  # [-1, 1)
    chosen = torch.rand((n,), generator=generator, device=device) < share
    strength = torch.where(chosen, strength, torch.zeros_like(strength))

    def amount(index: int, largest: float) -> Tensor:
        return torch.where(operation == index, strength * largest, torch.zeros_like(strength))

    angle = amount(0, math.pi / 6)
    rows = [
        torch.stack([angle.cos(), -angle.sin() + amount(1, 0.4), amount(3, 0.6)], dim=1),
        torch.stack([angle.sin() + amount(2, 0.4), angle.cos(), amount(4, 0.6)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)

    def factor(index: int) -> Tensor:
        return (1 + amount(index, 0.8))[:, None, None, None]

    x = x * factor(5)
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    x = mean + (x - mean) * factor(6)
    grey = x.mean(dim=1, keepdim=True)
    x = (grey + (x - grey) * factor(7)).clamp(0, 1)
    levels = 2 ** (8 - 5 * strength.abs())[:, None, None, None].round()
    posterized = (chosen & (operation == 8))[:, None, None, None] & (x < 1)
    x = torch.where(posterized, (x * levels).floor() / levels, x)
    above = x > 1 - strength.abs()[:, None, None, None]
    return torch.where((operation == 9)[:, None, None, None] & above, 1 - x, x)


def _mix(
    x: Tensor, targets: Tensor, recipe: AugmentationRecipe, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Replace a box of some images with their neighbour's pixels (CutMix); blend others with it (Mixup)."""
    n, side, device = len(x), x.shape[-1], x.device
    kind, kept, cy, cx = torch.rand((4, n), generator=generator, device=device)
    half = (1 - kept).sqrt() * side / 2
    pixel = torch.arange(side, device=device) + 0.5
    in_rows = (pixel - (cy * side)[:, None]).abs() <= half[:, None]  # (N, S)
    in_columns = (pixel - (cx * side)[:, None]).abs() <= half[:, None]
    box = (in_rows[:, :, None] & in_columns[:, None, :]).float()  # (N, S, S)
    cut = (kind < recipe.cutmix_share)[:, None, None]
    blend = ((kind >= recipe.cutmix_share) & (kind < recipe.cutmix_share + recipe.mixup_share))[:, None, None]
    other = torch.where(cut, box, torch.where(blend, (1 - kept)[:, None, None], torch.zeros_like(box)))
    share = other.mean(dim=(1, 2))[:, None]  # (N, 1) of the neighbour
    mixed = x + other[:, None] * (x.roll(1, 0) - x)
    return mixed, targets + share * (targets.roll(1, 0) - targets)


class TrainingRecipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Schedule, optimizer and distillation.

    `tuples` says whether narrower tuples are trained at all. The training targets are:

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

    def shape(self, classes: int) -> NetworkShape | VitShape:
        """Return the shape of the network for this many classes."""
        if self.vit is not None:
            return VitShape(**structs.asdict(self.vit), classes=classes)
        return NetworkShape(**structs.asdict(self.network), classes=classes)


def read_recipe(path: Path) -> Recipe:
    """Read and check a recipe file."""
    try:
        raw = read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read recipe {path}: {error.strerror}; name a TOML file") from None
    try:
        recipe = convert(raw, Recipe, str(path))
        if recipe.image_size % 8:
            raise ConfigError(f"{path}: image_size = {recipe.image_size}: must be a multiple of 8")
    except ConfigError as error:
        raise ConfigError(f"{error}; see configs/train-cifar100.toml for the known keys") from None
    return recipe
