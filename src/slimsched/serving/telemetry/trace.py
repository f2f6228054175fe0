"""What a run leaves for tables and pictures."""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.telemetry.summary import Summary


class Trace(Struct, frozen=True, kw_only=True):
    """The figures of a run and, answer by answer, when it came, how long it took and at which widths."""

    summary: Summary
    answered_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    tuples: NDArray[np.int64]  # positions in WIDTH_TUPLES
