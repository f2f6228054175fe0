"""The training loop: sandwich steps under a cosine schedule, averaged weights, checkpoints between epochs.

Everything random in an epoch comes from (seed, epoch), so a resumed run does what an uninterrupted one does.
"""

import copy
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct, structs
from torch import Tensor

from slimsched.errors import ConfigError, DataError
from slimsched.slimmable import checkpoint
from slimsched.slimmable.augmentation import augment
from slimsched.slimmable.evaluation import Evaluator, accuracy_percent
from slimsched.slimmable.image_set import Colours, ImageSet
from slimsched.slimmable.paper_table import MIXED, UNIFORM
from slimsched.slimmable.recipe import Recipe, TrainingRecipe
from slimsched.slimmable.resnet import SlimResNet
from slimsched.slimmable.sandwich import Sandwich, draw_tuples, update_average

MEASURED_EPOCHS = 3
FIX_EPOCHS_AFTER = 8


class EpochReport(Struct, frozen=True, kw_only=True):
    """What one epoch came to; accuracies (percent by tuple) only where the run held images out."""

    epoch: int
    epochs: int
    loss_widest: float
    loss_others: float
    learning_rate: float
    epoch_s: float
    elapsed_s: float
    accuracy: dict[tuple[float, ...], float] = {}


def train(
    recipe: Recipe,
    data: ImageSet,
    *,
    colours: Colours,
    folder: Path,
    device: torch.device,
    held_out: ImageSet | None = None,
    teacher: SlimResNet | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    stop_after: int | None = None,
) -> tuple[SlimResNet, checkpoint.Progress]:
    """Train (or go on training what `folder` holds); return the averaged network and how far it came."""
    began = time.perf_counter()
    training = recipe.training
    check_teacher(training, teacher, len(data.classes))
    torch.manual_seed(training.seed)
    net = SlimResNet(recipe.network.shape(len(data.classes))).to(device)
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = make_optimizer(net, training)
    progress = checkpoint.Progress(recipe=recipe, epochs=0 if training.minutes else training.epochs)
    if (folder / checkpoint.NAME).exists():
        progress = checkpoint.load(folder / checkpoint.NAME, recipe, net, average, optimizer)
    torch.backends.cudnn.benchmark = device.type == "cuda"
    batch = min(training.batch, len(data))
    sandwich = Sandwich(net, teacher or average, training, batch=batch, capture=device.type == "cuda")
    images, labels = (
        torch.from_numpy(np.array(data.images)).to(device),
        torch.from_numpy(data.labels).to(device),
    )
    steps = len(data) // batch
    began -= progress.seconds
    durations: list[float] = []
    while not progress.epochs or progress.epoch < progress.epochs:
        started = time.perf_counter()
        epoch = progress.epoch
        rng = np.random.default_rng((training.seed, epoch))
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
        order = torch.from_numpy(rng.permutation(len(data))).to(device)
        rate = 0.0
        for step in range(steps):
            index = order[step * batch : (step + 1) * batch]
            x, targets = augment(
                images[index],
                labels[index],
                classes=len(data.classes),
                colours=colours,
                recipe=recipe.augmentation,
                generator=generator,
            )
            rate = learning_rate(training, epoch + step / steps, progress.epochs)
            for group in optimizer.param_groups:
                group["lr"] = rate
            sandwich(x, targets, draw_tuples(training, rng))
            optimizer.step()
            update_average(
                average, net, keep=average_keep(training, epoch * steps + step, progress.epochs * steps)
            )
            advance(step + 1, steps)
        widest, others = sandwich.take_losses()
        durations.append(time.perf_counter() - started)
        progress = structs.replace(progress, epoch=epoch + 1, seconds=time.perf_counter() - began)
        if not progress.epochs and len(durations) >= FIX_EPOCHS_AFTER:
            progress = fix_epochs(progress, durations)
        last = stop_after == progress.epoch or progress.epoch == progress.epochs
        if last or progress.epoch % training.checkpoint_every == 0:
            checkpoint.save(folder, progress, net, average, optimizer)
        due = held_out is not None and (last or progress.epoch % training.validate_every == 0)
        report(
            EpochReport(
                epoch=progress.epoch,
                epochs=progress.epochs,
                loss_widest=widest / steps,
                loss_others=others / steps / (1 + training.random_tuples),
                learning_rate=rate,
                epoch_s=durations[-1],
                elapsed_s=progress.seconds,
                accuracy=validate(average, held_out, colours) if due and held_out is not None else {},
            )
        )
        if last:
            break
    return average, progress


def check_teacher(training: TrainingRecipe, teacher: SlimResNet | None, classes: int) -> None:
    """A recipe that learns from a model needs one, for the same classes."""
    if training.teacher == "model" and teacher is None:
        raise ConfigError('the recipe says teacher = "model", but none was named; name one with --teacher')
    if teacher is not None and teacher.shape.classes != classes:
        raise DataError(f"the teacher knows {teacher.shape.classes} classes, the data has {classes}")


def make_optimizer(net: SlimResNet, training: TrainingRecipe) -> torch.optim.SGD:
    """Nesterov momentum; weights decay, gains, shifts and biases do not."""
    decayed: list[Tensor] = [p for p in net.parameters() if p.dim() in (2, 4)]
    others: list[Tensor] = [p for p in net.parameters() if p.dim() not in (2, 4)]
    return torch.optim.SGD(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=training.learning_rate,
        momentum=training.momentum,
        nesterov=True,
        fused=next(net.parameters()).is_cuda,
    )


def learning_rate(training: TrainingRecipe, epoch: float, epochs: int) -> float:
    """Linear warm-up, then half a cosine down to 0 at the end; flat while the end is not fixed yet."""
    if epoch < training.warmup_epochs:
        return training.learning_rate * (epoch + 1e-2) / training.warmup_epochs
    if not epochs:
        return training.learning_rate
    done = (epoch - training.warmup_epochs) / max(epochs - training.warmup_epochs, 1)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def average_keep(training: TrainingRecipe, step: int, steps: int) -> float:
    """Share of the average kept in a step: a horizon of `average_share` of the run, shorter at the start."""
    horizon = max(training.average_share * steps, 1.0) if steps else 1e9
    return min(1 - 1 / horizon, (1 + step) / (10 + step))


def fix_epochs(progress: checkpoint.Progress, durations: list[float]) -> checkpoint.Progress:
    """Choose the number of epochs that fills the minutes given, from the speed of the last few."""
    epoch_s = float(np.mean(durations[-MEASURED_EPOCHS:]))
    left_s = progress.recipe.training.minutes * 60 - progress.seconds
    return structs.replace(progress, epochs=progress.epoch + max(1, int(left_s / epoch_s)))


def validate(net: SlimResNet, held_out: ImageSet, colours: Colours) -> dict[tuple[float, ...], float]:
    """Accuracy of the paper's eight tuples on images the network was not trained on."""
    tuples = (*UNIFORM, *MIXED)
    correct = Evaluator(net, colours).correct(held_out, tuples, batch=1000)
    return {widths: accuracy_percent(row) for widths, row in zip(tuples, correct, strict=True)}
