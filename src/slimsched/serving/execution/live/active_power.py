"""Power above idle by key and batch size: measured at a few points, interpolated between them."""

from collections.abc import Mapping
from math import log2

import numpy as np
from msgspec import Struct

from slimsched.serving.domain.key import Key
from slimsched.serving.domain.served_model import ServedModel


class ActivePower(Struct, frozen=True, kw_only=True):
    """`watts[segment][choice]` holds a value per batch size; choices in between are interpolated."""

    batches: tuple[int, ...]
    watts: list[dict[int, list[float]]]

    def at(self, key: Key, batch: int) -> float:
        """Linear in the position of the choice and in the logarithm of the batch size."""
        sizes = [log2(size) for size in self.batches]
        measured = sorted(self.watts[key.segment].items())
        by_choice = [float(np.interp(log2(batch), sizes, row)) for _, row in measured]
        return float(np.interp(key.choice, [choice for choice, _ in measured], by_choice))


def constant_power(model: ServedModel, watts: float) -> ActivePower:
    """The same power for everything, where no meter can read it."""
    return ActivePower(batches=(1,), watts=[{0: [watts]} for _ in range(model.segments)])


def keys_measured(model: ServedModel) -> list[Key]:
    """For each segment the narrowest and the widest choice; those between are interpolated.

    In a model that is not nested choices have nothing to do with each other: all are measured.
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
    """The smallest, the middle and the largest of the batch sizes of a profile."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))
