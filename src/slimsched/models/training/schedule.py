"""How learning rate, weight average and the number of epochs follow from the recipe."""

import math
from collections.abc import Sequence

from slimsched.models.training.recipe import TrainingRecipe

MEASURED_EPOCHS = 3
FIX_EPOCHS_AFTER = 8


def learning_rate(training: TrainingRecipe, epoch: float, epochs: int) -> float:
    """Linear warm-up, then half a cosine down to 0 at the end; flat while the end is not fixed yet."""
    if epoch < training.warmup_epochs:
        return training.learning_rate * (epoch + 1e-2) / training.warmup_epochs
    if not epochs:
        return training.learning_rate
    done = (epoch - training.warmup_epochs) / max(epochs - training.warmup_epochs, 1)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def fixed_epochs(training: TrainingRecipe, steps: int) -> int:
    """Epochs in all, enough for the least number of steps; 0 where the run is given minutes instead."""
    if training.minutes:
        return 0
    return max(training.epochs, math.ceil(training.least_steps / steps))


def average_keep(training: TrainingRecipe, step: int, steps: int) -> float:
    """Share of the average kept in a step: a horizon of `average_share` of the run, shorter at the start."""
    horizon = max(training.average_share * steps, 1.0) if steps else 1e9
    return min(1 - 1 / horizon, (1 + step) / (10 + step))


def epochs_that_fit(
    training: TrainingRecipe, epoch: int, elapsed_s: float, epoch_times_s: Sequence[float]
) -> int:
    """Epochs in all that fill the minutes given, from the speed of the last few; 0 while it is too early."""
    if len(epoch_times_s) < FIX_EPOCHS_AFTER:
        return 0
    epoch_s = sum(epoch_times_s[-MEASURED_EPOCHS:]) / MEASURED_EPOCHS
    return epoch + max(1, int((training.minutes * 60 - elapsed_s) / epoch_s))
