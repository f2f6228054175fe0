"""Computes learning rate, weight average and number of epochs from the recipe."""

import math
from collections.abc import Sequence

from slimsched.models.training.recipe import TrainingRecipe

MEASURED_EPOCHS = 3
FIX_EPOCHS_AFTER = 8


def learning_rate(training: TrainingRecipe, epoch: float, epochs: int) -> float:
    """Linear warm-up, then half a cosine down to 0; constant while the number of epochs is unknown."""
    if epoch < training.warmup_epochs:
        return training.learning_rate * (epoch + 1e-2) / training.warmup_epochs
    if not epochs:
        return training.learning_rate
    done = (epoch - training.warmup_epochs) / max(epochs - training.warmup_epochs, 1)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def fixed_epochs(training: TrainingRecipe, steps: int) -> int:
    """Return the total epochs, enough for `least_steps`; 0 if the recipe gives minutes instead."""
    if training.minutes:
        return 0
    return max(training.epochs, math.ceil(training.least_steps / steps))


def average_keep(training: TrainingRecipe, step: int, steps: int) -> float:
    """Share of the average that a step keeps; the horizon is `average_share` of the run, at first less."""
    horizon = max(training.average_share * steps, 1.0) if steps else 1e9
    return min(1 - 1 / horizon, (1 + step) / (10 + step))


def epochs_that_fit(
    training: TrainingRecipe, epoch: int, elapsed_s: float, epoch_times_s: Sequence[float]
) -> int:
    """Return the total epochs that fit into the minutes, by recent speed; 0 while too few were measured."""
    if len(epoch_times_s) < FIX_EPOCHS_AFTER:
        return 0
    epoch_s = sum(epoch_times_s[-MEASURED_EPOCHS:]) / MEASURED_EPOCHS
    return epoch + max(1, int((training.minutes * 60 - elapsed_s) / epoch_s))
