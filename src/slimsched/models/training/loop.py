"""The training loop: sandwich steps under a cosine schedule, averaged weights, checkpoints between epochs.

All random numbers of an epoch come from (seed, epoch), so a resumed run equals an uninterrupted one.
"""

import copy
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct, structs

from slimsched.core.config import ConfigError, DataError
from slimsched.models.data.image_set import Colours, ImageSet
from slimsched.models.evaluation import Evaluator, accuracy_percent
from slimsched.models.network import SlimNetwork
from slimsched.models.network_choice import build
from slimsched.models.slimresnet.paper_table import MIXED, UNIFORM
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.training import checkpoint
from slimsched.models.training.augmentation import augment
from slimsched.models.training.optimizer import make_optimizer
from slimsched.models.training.recipe import Recipe, TrainingRecipe
from slimsched.models.training.sandwich import Sandwich, draw_tuples, update_average
from slimsched.models.training.schedule import average_keep, epochs_that_fit, fixed_epochs, learning_rate


class EpochReport(Struct, frozen=True, kw_only=True):
    """The figures of one epoch; accuracies (percent by tuple) only if the run held images out."""

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
    teacher: SlimNetwork | None = None,
    start: SlimNetwork | None = None,
    report: Callable[[EpochReport], None] = lambda report: None,
    advance: Callable[[int, int], None] = lambda step, steps: None,
    stop_after: int | None = None,
    limit_s: float | None = None,
) -> tuple[SlimNetwork, checkpoint.Progress]:
    """Train, or resume the run in `folder`; return the averaged network and the progress.

    The run stops after epoch `stop_after`, or before an epoch that would end later than `limit_s` seconds
    from now. It leaves a checkpoint to resume from.
    """
    called_s = began_s = time.perf_counter()
    training = recipe.training
    check_teacher(training, teacher, len(data.classes))
    trainer = Trainer(recipe, data, colours=colours, device=device, teacher=teacher)
    if start is not None and not checkpoint.exists(folder):
        trainer.begin_with(start)
    progress = checkpoint.Progress(recipe=recipe, epochs=fixed_epochs(training, trainer.steps))
    if checkpoint.exists(folder):
        progress = checkpoint.load(folder, recipe, trainer.net, trainer.average, trainer.optimizer)
    began_s -= progress.seconds
    epoch_times_s: list[float] = []
    while not progress.epochs or progress.epoch < progress.epochs:
        started_s = time.perf_counter()
        widest, others, rate = trainer.run_epoch(progress.epoch, progress.epochs, advance)
        now_s = time.perf_counter()
        epoch_times_s.append(now_s - started_s)
        progress = structs.replace(progress, epoch=progress.epoch + 1, seconds=now_s - began_s)
        if not progress.epochs:
            epochs = epochs_that_fit(training, progress.epoch, progress.seconds, epoch_times_s)
            progress = structs.replace(progress, epochs=epochs)
        out_of_time = limit_s is not None and now_s - called_s + 1.5 * max(epoch_times_s[-3:]) > limit_s
        last = out_of_time or progress.epoch in (stop_after, progress.epochs)
        if last or progress.epoch % training.checkpoint_every == 0:
            checkpoint.save(folder, progress, trainer.net, trainer.average, trainer.optimizer)
        accuracy = {}
        if held_out is not None and (last or progress.epoch % training.validate_every == 0):
            accuracy = validate(trainer.average, held_out, colours)
        report(
            EpochReport(
                epoch=progress.epoch,
                epochs=progress.epochs,
                loss_widest=widest,
                loss_others=others,
                learning_rate=rate,
                epoch_s=epoch_times_s[-1],
                elapsed_s=progress.seconds,
                accuracy=accuracy,
            )
        )
        if last:
            break
    return trainer.average, progress


class Trainer:
    """A network in training: its weights, their average, the optimizer, and the images on their device."""

    def __init__(
        self,
        recipe: Recipe,
        data: ImageSet,
        *,
        colours: Colours,
        device: torch.device,
        teacher: SlimNetwork | None = None,
    ) -> None:
        torch.manual_seed(recipe.training.seed)
        torch.backends.cudnn.benchmark = device.type == "cuda"
        self.recipe, self.colours, self.classes = recipe, colours, len(data.classes)
        self.net = build((recipe.vit or recipe.network).shape(self.classes)).to(device)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        if recipe.training.compile and isinstance(self.net, SlimVit):
            self.net.use_compiled_blocks()
        self.optimizer = make_optimizer(self.net, recipe.training)
        self.batch = min(recipe.training.batch, len(data))
        self.steps = len(data) // self.batch
        self._images = torch.from_numpy(np.array(data.images)).to(device)
        self._labels = torch.from_numpy(data.labels).to(device)
        self._sandwich = Sandwich(
            self.net,
            teacher or self.average,
            recipe.training,
            batch=self.batch,
            capture=device.type == "cuda",
        )

    def begin_with(self, start: SlimNetwork) -> None:
        """Take the weights of another network of the same shape."""
        if start.shape != self.net.shape:
            raise ConfigError(f"the start has the shape {start.shape}, the recipe asks for {self.net.shape}")
        for one in (self.net, self.average):
            one.load_state_dict(start.state_dict())

    def run_epoch(
        self, epoch: int, epochs: int, advance: Callable[[int, int], None]
    ) -> tuple[float, float, float]:
        """One pass over the data; mean losses of the widest and the other tuples, and the last rate."""
        training, device = self.recipe.training, self._images.device
        rng = np.random.default_rng((training.seed, epoch))
        generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
        order = torch.from_numpy(rng.permutation(len(self._labels))).to(device)
        rate = 0.0
        for step in range(self.steps):
            index = order[step * self.batch : (step + 1) * self.batch]
            x, targets = augment(
                self._images[index],
                self._labels[index],
                classes=self.classes,
                colours=self.colours,
                recipe=self.recipe.augmentation,
                generator=generator,
            )
            rate = learning_rate(training, epoch + step / self.steps, epochs)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._sandwich(x, targets, draw_tuples(training, rng))
            self.optimizer.step()
            keep = average_keep(training, epoch * self.steps + step, epochs * self.steps)
            update_average(self.average, self.net, keep=keep)
            advance(step + 1, self.steps)
        widest, others = self._sandwich.take_losses()
        return widest / self.steps, others / self.steps / (1 + training.random_tuples), rate


def check_teacher(training: TrainingRecipe, teacher: SlimNetwork | None, classes: int) -> None:
    """Raise an error if the recipe's teacher is missing or was trained for a different number of classes."""
    if training.teacher == "model" and teacher is None:
        raise ConfigError('the recipe says teacher = "model", but none was named; name one with --teacher')
    if teacher is not None and teacher.shape.classes != classes:
        raise DataError(f"the teacher knows {teacher.shape.classes} classes, the data has {classes}")


def validate(net: SlimNetwork, held_out: ImageSet, colours: Colours) -> dict[tuple[float, ...], float]:
    """Measure the accuracy of the paper's eight tuples on images not used for training."""
    tuples = (*UNIFORM, *MIXED)
    correct = Evaluator(net, colours).correct(held_out, tuples, batch=1000)
    return {widths: accuracy_percent(row) for widths, row in zip(tuples, correct, strict=True)}
