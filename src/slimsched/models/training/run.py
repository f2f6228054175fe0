"""A whole training run: open the images, hold some out, train, score, write the model and its card."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.data.dataset import ScoredImages, held_out_amount, hold_out, open_images, scored_images
from slimsched.models.data.images import ImageSet
from slimsched.models.network import TRAINED, ModelCard, SlimNetwork, save
from slimsched.models.package import Shape
from slimsched.models.slimresnet.shape import UNIFORM
from slimsched.models.training.loop import EpochProgress as Progress
from slimsched.models.training.loop import EpochReport, train, validate
from slimsched.models.training.recipe import Recipe
from slimsched.models.width import format_widths

# -- The log of a training run: one JSON line per epoch, and TensorBoard scalars if TensorBoard is installed.


class TrainingLog:
    """Appends every epoch's figures to `epochs.jsonl` and to TensorBoard event files in the run's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = (folder / "epochs.jsonl").open("ab")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder))

    def write(self, report: EpochReport) -> None:
        """Write the figures of one epoch."""
        accuracy = {format_widths(widths): value for widths, value in report.accuracy.items()}
        self._lines.write(msgspec.json.encode(msgspec.to_builtins(report) | {"accuracy": accuracy}) + b"\n")
        self._lines.flush()
        if self._board is None:
            return
        scalars = {
            "loss/widest": report.loss_widest,
            "loss/others": report.loss_others,
            "schedule/learning_rate": report.learning_rate,
            "speed/epochs_per_minute": 60 / report.epoch_s,
        } | {f"accuracy_percent/{name}": value for name, value in accuracy.items()}
        for name, value in scalars.items():
            self._board.add_scalar(name, value, report.epoch)
        self._board.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()


CHANCE_DEVIATIONS = 3.0
"""Standard deviations above the expected score that pure guessing is still likely to reach."""


class RunResult(Struct, frozen=True, kw_only=True):
    """The result of a run. `finished` is false if a time limit stopped it; `warning` names a problem."""

    card: ModelCard[Shape]
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
    start: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    limit_s: float | None = None,
) -> RunResult:
    """Train on a folder of images, score the result and write model and card to `out`.

    With `start`, training begins with these weights. The time limit includes the time to read the images.
    """
    started_s = time.perf_counter()
    images = open_images(data, "train", side=recipe.image_size)
    amount = held_out_amount(recipe.training.held_out, data)
    held_out = None
    if amount:
        images, held_out = hold_out(images, amount, seed=recipe.training.seed, run=out)
    colours = images.colours()
    with TrainingLog(out) as log:

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
            start=start,
            report=report_epoch,
            advance=advance,
            limit_s=limit_s and max(limit_s - (time.perf_counter() - started_s), 0.1),
        )
    finished = progress.epoch == progress.epochs
    scored = _scored(data, images, held_out, recipe.image_size, finished)
    accuracy = validate(net, scored.images, colours) if scored is not None else {}
    warning = None
    if scored is not None:
        warning = chance_warning({w[0]: accuracy[w] for w in UNIFORM}, scored.images.labels)
    card = ModelCard(
        name=out.name,
        shape=net.shape,
        colours=colours,
        classes=images.classes,
        recipe=recipe,
        epochs=progress.epoch,
        training_s=round(progress.seconds, 1),
        trained_on=f"{len(images)} images, {device}",
        scored_on=scored.description if scored is not None else "",
        accuracy_percent={format_widths(widths): percent for widths, percent in accuracy.items()},
        notes=(warning,) if warning else (),
    )
    card = save(out, TRAINED, net, card)
    return RunResult(card=card, progress=progress, finished=finished, warning=warning)


def chance_percent(labels: NDArray[np.int64]) -> float:
    """Return the highest accuracy in percent that guessing the most common class is likely to reach.

    This is p + 3 sqrt(p (1 - p) / n), where p is the share of the most common class among n images.
    """
    share = float(np.bincount(labels).max()) / len(labels)
    return 100 * min(1.0, share + CHANCE_DEVIATIONS * math.sqrt(share * (1 - share) / len(labels)))


def chance_warning(percent_by_width: dict[float, float], labels: NDArray[np.int64]) -> str | None:
    """Return a warning that names the widths at chance level, or None if there are none."""
    limit = chance_percent(labels)
    if len(np.unique(labels)) < 2:
        return None
    at_chance = [width for width, percent in percent_by_width.items() if percent <= limit]
    if not at_chance:
        return None
    names = ", ".join(f"{width:g} ({percent_by_width[width]:.1f} %)" for width in at_chance)
    return (
        f"WARNING: no better than guessing at width {names}: guessing can reach {limit:.1f} % here. "
        "Do not use this model; train longer (epochs, least_steps), add pictures, or check the labels"
    )


def _scored(
    data: Path, images: ImageSet, held_out: ImageSet | None, side: int, finished: bool
) -> ScoredImages | None:
    """Choose held-out pictures, else (once the run is finished) test images, else training images."""
    if held_out is not None:
        return ScoredImages(images=held_out, kind="held-out pictures")
    if not finished:
        return None
    return scored_images(data, side=side, classes=images.classes, run=None)
