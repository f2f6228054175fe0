"""A whole training run: open the images, hold some out, train, score, write the model and its card."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from msgspec import Struct

from slimsched.models.chance import chance_warning
from slimsched.models.data.dataset import open_images
from slimsched.models.data.held_out import held_out_amount, hold_out
from slimsched.models.data.image_set import ImageSet
from slimsched.models.data.scored_images import ScoredImages, scored_images
from slimsched.models.network import SlimNetwork
from slimsched.models.network_choice import Card, save
from slimsched.models.slimresnet.paper_table import UNIFORM
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.weights import TRAINED, ModelCard
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.slimvit.weights import VitCard
from slimsched.models.training.checkpoint import Progress
from slimsched.models.training.loop import EpochReport, train, validate
from slimsched.models.training.recipe import Recipe
from slimsched.models.training.run_log import RunLog
from slimsched.models.width import format_widths


class RunResult(Struct, frozen=True, kw_only=True):
    """What a run came to. `finished` is false where a time limit cut it; `warning` says what is wrong."""

    card: Card
    progress: Progress
    finished: bool
    warning: str | None = None


def run_training(
    recipe: Recipe,
    data: Path,
    out: Path,
    *,
    device: torch.device,
    teacher: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    limit_s: float | None = None,
    copy_to: Path | None = None,
    workers: int = 0,
) -> RunResult:
    """Train on a folder of images, score the result and write model and card to `out`.

    The time limit counts from here, so reading the images is part of it.
    """
    started_s = time.perf_counter()
    images = open_images(data, "train", side=recipe.image_size, workers=workers)
    amount = held_out_amount(recipe.training.held_out, data)
    held_out = None
    if amount:
        images, held_out = hold_out(images, amount, seed=recipe.training.seed, run=out)
    colours = images.colours()
    with RunLog(out) as log:

        def report_epoch(epoch: EpochReport) -> None:
            log.write(epoch)
            report(epoch)

        net, progress = train(
            recipe,
            images,
            colours=colours,
            folder=out,
            device=device,
            held_out=held_out,
            teacher=teacher,
            report=report_epoch,
            advance=advance,
            limit_s=limit_s and max(limit_s - (time.perf_counter() - started_s), 0.1),
            copy_to=copy_to,
        )
    finished = progress.epoch == progress.epochs
    scored = _scored(data, images, held_out, recipe.image_size, finished)
    accuracy = validate(net, scored.images, colours) if scored is not None else {}
    warning = None
    if scored is not None:
        warning = chance_warning({w[0]: accuracy[w] for w in UNIFORM}, scored.images.labels)
    facts = {
        "name": out.name,
        "colours": colours,
        "classes": images.classes,
        "recipe": recipe,
        "epochs": progress.epoch,
        "training_s": round(progress.seconds, 1),
        "trained_on": f"{len(images)} images, {device}",
        "scored_on": scored.description if scored is not None else "",
        "accuracy_percent": {format_widths(widths): percent for widths, percent in accuracy.items()},
        "notes": (warning,) if warning else (),
    }
    card = save(out, TRAINED, net, make_card(net, facts))
    return RunResult(card=card, progress=progress, finished=finished, warning=warning)


def make_card(net: SlimNetwork, facts: dict[str, object]) -> Card:
    """The card of the network's own kind."""
    if isinstance(net, SlimVit):
        return VitCard(shape=net.shape, **facts)  # type: ignore[arg-type]
    assert isinstance(net, SlimResNet)
    return ModelCard(shape=net.shape, **facts)  # type: ignore[arg-type]


def _scored(
    data: Path, images: ImageSet, held_out: ImageSet | None, side: int, finished: bool
) -> ScoredImages | None:
    """Held-out pictures, else the data's own test images (once the run is over), else the training images."""
    if held_out is not None:
        return ScoredImages(images=held_out, kind="held-out pictures")
    if not finished:
        return None
    return scored_images(data, side=side, classes=images.classes, run=None)
