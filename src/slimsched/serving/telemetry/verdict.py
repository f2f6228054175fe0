"""Whether a limit of a goal is kept, broken or undecided: one verdict, wherever it is asked for.

What counts for a limit is summed in blocks of time: a total and a weight for each, in order. The figure is
total over weight. Around it stands an interval that holds whenever somebody looks: the boundary of a normal
mixture over the blocks (Robbins 1970), and for shares the same boundary in relative entropy, as for a
binomial. Answers near each other are alike, so variance is that of whole blocks, and of two, four or more
together where that is larger. A limit is kept or broken if the whole interval says so, else undecided.
"""

from collections.abc import Callable, Sequence
from math import ceil, log, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import Finite, Whole
from slimsched.serving.gateway.goal import QUANTILES, StatedLimit

WRONG = 0.05
"""How often an interval may miss the true figure, at whatever time one looks."""

BLOCKS, LEAST_BLOCKS = 64, 16
"""Into how many blocks of time a run is divided at most, and how many with answers a verdict needs."""

MOST_ALIKE = 0.9
"""The most that a block counts as like the one before."""

MIXED = 0.25
"""Variance of the mixture per block: the interval is narrowest at about 32 blocks."""

FLOATS = 1e-9
"""Sums of equal numbers differ by this share at most."""

Word = Literal["kept", "broken", "undecided"]
Sums = NDArray[np.float64]


class LimitVerdict(Struct, frozen=True):
    """A limit as a user writes it, whether it is kept, and the figure with its interval.

    The figure of a quantile is the share of answers within its time. `missing` is how many more answers
    decide, about (seconds, of power); None where it is decided, or nobody can say.
    """

    limit: str
    word: Word
    figure: Finite | None
    low: Finite | None
    high: Finite | None
    answers: Whole
    missing: Whole | None
    says: str


def judge(limit: StatedLimit, sums: Sums, doublings: int = 0) -> LimitVerdict:
    """Judge one limit by its blocks, (blocks, 2): totals and weights.

    `doublings` is how often blocks were joined in pairs before: each such time shares the chance to be wrong.
    """
    total, weight = sums.sum(axis=0).tolist()
    used, asked = int((sums[:, 1] > 0).sum()), QUANTILES.get(limit.figure, limit.value)
    if used < LEAST_BLOCKS:
        missing = max(1, ceil(weight * (LEAST_BLOCKS / max(1, used) - 1.0))) if weight else LEAST_BLOCKS
        figure = total / weight if weight else None
        return _verdict(limit, "undecided", (figure, None, None), weight, missing)
    figure, factor = total / weight, _factor(used, WRONG / ((doublings + 1) * (doublings + 2)))
    variance = _variance(sums, figure)
    if limit.figure in QUANTILES:
        alike = variance / (weight * figure * (1.0 - figure)) if 0.0 < figure < 1.0 else 1.0
        low, high = _share_interval(figure, weight / max(1.0, alike), factor)
    else:
        half = factor * sqrt(variance) / weight
        low, high = figure - half, figure + half
    hair, floor = FLOATS * asked, limit.figure in QUANTILES or limit.figure == "accuracy"
    is_kept = low >= asked - hair if floor else high <= asked + hair
    is_broken = high < asked - hair if floor else low > asked + hair
    word: Word = "kept" if is_kept else "broken" if is_broken else "undecided"
    missing = None
    if word == "undecided" and figure != asked:
        half = figure - low if figure > asked else high - figure
        more = weight * ((half / (figure - asked)) ** 2 - 1.0)
        missing = max(1, ceil(more)) if more < 100.0 * weight else None
    return _verdict(limit, word, (figure, low, high), weight, missing)


def worst(verdicts: Sequence[LimitVerdict]) -> Word:
    """Say whether a goal is kept: broken if one of its limits is, kept if all are."""
    words = {one.word for one in verdicts}
    return "broken" if "broken" in words else "kept" if words == {"kept"} else "undecided"


def _factor(blocks: int, wrong: float) -> float:
    """Return how many standard deviations the boundary of the mixture stands off."""
    mixed = 1.0 + MIXED * blocks
    return sqrt(2.0 * mixed / (mixed - 1.0) * log(sqrt(mixed) / wrong))


def _variance(sums: Sums, mean: float) -> float:
    """Return the variance of the total, by blocks: it is larger where a block is like the one before.

    Few blocks show too little of that, so some is added; and blocks that are joined may show more of it.
    """
    used, off = int((sums[:, 1] > 0).sum()), sums[:, 0] - mean * sums[:, 1]
    own = float(off @ off)
    alike = float(off[1:] @ off[:-1]) / own if own else 0.0
    alike = min(MOST_ALIKE, max(0.0, alike + (1.0 + 3.0 * alike) / used))
    most = own * used / (used - 1) * (1.0 + alike) / (1.0 - alike)
    while (used := int((sums[:, 1] > 0).sum())) >= LEAST_BLOCKS:
        sums = sums[len(sums) % 2 :].reshape(-1, 2, 2).sum(axis=1)
        off = sums[:, 0] - mean * sums[:, 1]
        most = max(most, float(off @ off) * used / max(1, used - 2))
    return most


def _share_interval(share: float, count: float, factor: float) -> tuple[float, float]:
    """Return the shares that are no further from this one, in relative entropy, than the boundary."""

    def is_far(other: float) -> bool:
        far = share * log(share / other) if share else 0.0
        far += (1.0 - share) * log((1.0 - share) / (1.0 - other)) if share < 1.0 else 0.0
        return 2.0 * count * far > factor * factor

    return _edge(is_far, share, 0.0), _edge(is_far, share, 1.0)


def _edge(is_far: Callable[[float], bool], near: float, far: float) -> float:
    for _ in range(40 if near != far else 0):
        middle = 0.5 * (near + far)
        near, far = (near, middle) if is_far(middle) else (middle, far)
    return near


def _verdict(
    limit: StatedLimit,
    word: Word,
    around: tuple[float | None, float | None, float | None],
    weight: float,
    missing: int | None,
) -> LimitVerdict:
    figure, low, high = around
    unit = "s" if limit.figure == "power" else "answers"
    says = "no answer yet" if figure is None else _written(limit, figure)
    if low is not None and high is not None:
        says += f" ({_written(limit, low, unit=False)} to {_written(limit, high)})"
    if limit.figure in QUANTILES and figure is not None:
        says += f" within {1e3 * limit.value:g} ms, {100 * QUANTILES[limit.figure]:g} % asked"
    if word == "undecided" and figure is not None:
        says += f", about {missing:,} more {unit} decide" if missing else ", too close to tell"
    return LimitVerdict(limit.text, word, figure, low, high, round(weight), missing, says)


def _written(limit: StatedLimit, value: float, *, unit: bool = True) -> str:
    scale, digits, name = {
        "energy": (1e3, ".4g", "mJ"),
        "power": (1.0, ".4g", "W"),
        "mean": (1e3, ".4g", "ms"),
    }.get(limit.figure, (100.0, ".2f", "%"))
    return f"{scale * value:{digits}}" + f" {name}" * unit
