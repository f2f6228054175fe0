"""Means over seeds, with confidence intervals."""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np


class Mean(NamedTuple):
    """A mean, and half the width of its 95 % interval (Student's t); 0 if there is only one value."""

    value: float
    ci95: float


def mean_of(values: Sequence[float]) -> Mean:
    """Average one figure over seeds."""
    from scipy.special import stdtrit  # the quantile of Student's t; scipy takes long to import

    numbers, count = np.asarray(values, dtype=float), len(values)
    if count < 2:
        return Mean(float(numbers.mean()), 0.0)
    half_width = stdtrit(count - 1, 0.975) * numbers.std(ddof=1) / sqrt(count)
    return Mean(float(numbers.mean()), float(half_width))
