"""Small networks, images and recipes, so that a test trains in a second."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from slimsched.models.data import cifar
from slimsched.models.data.images import ImageSet
from slimsched.models.elastic import ElasticModel, PlanRun, Tensors
from slimsched.models.slimresnet.shape import NetworkRecipe, NetworkShape
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.spec import Path as Plan
from slimsched.models.training.recipe import Recipe, TrainingRecipe

SHAPE = NetworkShape(channels=(32, 32, 64, 64), blocks=(1, 1, 1, 2), image_size=16, classes=5)
COLOURS = {"red": (210, 50, 50), "green": (50, 210, 50), "blue": (50, 50, 210)}


def toy_images(count: int = 60, side: int = 16, seed: int = 0) -> ImageSet:
    """Noisy squares of three colours."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    plain = np.array(list(COLOURS.values()))[labels][:, :, None, None]
    images = np.clip(plain + rng.normal(0, 40, (count, 3, side, side)), 0, 255).astype(np.uint8)
    return ImageSet(images=images, labels=labels.astype(np.int64), classes=tuple(COLOURS))


def total_macs(shape: NetworkShape | VitShape, widths: Sequence[float]) -> int:
    """Multiply-accumulates of one image through all segments."""
    before = (None, *widths[:-1])
    return sum(shape.macs(s, p, w) for s, (p, w) in enumerate(zip(before, widths, strict=True)))


@torch.inference_mode()
def run_plan(model: ElasticModel, plan: Plan, raw: Tensors) -> Tensors:
    """Run one plan from raw inputs to finished outputs."""
    return dict(PlanRun(model).outputs(raw, [plan]))[plan]


def read_part(path: Path) -> ImageSet:
    """Read the images of a single packed part of CIFAR-100."""
    return cifar._image_set(cifar._unpack(path), cifar.class_names(path.parent))


def toy_recipe(**training: object) -> Recipe:
    """Four epochs of a tiny network, unless told otherwise."""
    defaults: dict[str, object] = {
        "epochs": 4,
        "batch": 20,
        "learning_rate": 0.05,
        "warmup_epochs": 1,
        "precision": "float32",
    }
    return Recipe(
        network=NetworkRecipe(channels=(32, 32, 32, 32), blocks=(1, 1, 1, 1), image_size=16),
        training=TrainingRecipe(**(defaults | training)),  # type: ignore[arg-type]
    )


def write_folder(folder: Path, count: int = 12) -> Path:
    """A user's folder: one sub-folder a class, images of different sizes."""
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.clip(np.array(colour) + rng.normal(0, 30, (18 + index, 30, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index}.png")
    return folder
