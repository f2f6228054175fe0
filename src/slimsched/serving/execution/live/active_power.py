"""Power above idle by key and batch size, measured at a few points and interpolated in between."""

from collections.abc import Mapping
from math import log2

import numpy as np
from msgspec import Struct

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key


class ActivePower(Struct, frozen=True, kw_only=True):
    """`watts[segment][choice]` holds a value per batch size; choices in between are interpolated."""

    batches: tuple[int, ...]
    watts: list[dict[int, list[float]]]

    def at(self, key: Key, batch: int) -> float:
        """Interpolate, linearly in the choice's position and in the logarithm of the batch size."""
        sizes = [log2(size) for size in self.batches]
        measured = sorted(self.watts[key.segment].items())
        by_choice = [float(np.interp(log2(batch), sizes, row)) for _, row in measured]
        return float(np.interp(key.choice, [choice for choice, _ in measured], by_choice))


def constant_power(model: ServedModel, watts: float) -> ActivePower:
    """Use the same power for everything, for devices without a meter."""
    return ActivePower(batches=(1,), watts=[{0: [watts]} for _ in range(model.segments)])


def keys_measured(model: ServedModel) -> list[Key]:
    """Return the keys to measure: the narrowest and the widest choice of each segment.

    Choices of a model that is not nested are unrelated, so all of them are measured.
    """
    keys = sorted(model.keys.values(), key=lambda key: abs(key.previous - key.choice))  # alike ones first
    chosen: dict[tuple[int, int], Key] = {}
    for key in keys:
        choices = [other.choice for other in keys if other.segment == key.segment]
        if not model.spec.nested or key.choice in (min(choices), max(choices)):
            chosen.setdefault((key.segment, key.choice), key)
    return list(chosen.values())


def measured_power(
    model: ServedModel, batches: tuple[int, ...], watts: Mapping[tuple[Key, int], float]
) -> ActivePower:
    """Put measured values into a table."""
    table: list[dict[int, list[float]]] = [{} for _ in range(model.segments)]
    for key in keys_measured(model):
        table[key.segment][key.choice] = [watts[key, size] for size in batches]
    return ActivePower(batches=batches, watts=table)


def batches_measured(batches: tuple[int, ...]) -> tuple[int, ...]:
    """Return the smallest, the middle and the largest batch size of a profile."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))
