"""A trace: the results of a run, for tables and pictures."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.telemetry.summary import Summary


class Answers(Struct, frozen=True, kw_only=True):
    """For each answer: when it was given, how long it took, and by which plan of which model."""

    answered_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    model: NDArray[np.int64]
    plan: NDArray[np.int64]


class Trace(Struct, frozen=True, kw_only=True):
    """The figures of a run and its answers."""

    summary: Summary
    answers: Answers
