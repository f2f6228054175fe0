"""Which size each job gets when their sizes must fit together and cost least: a knapsack, solved exactly."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Options(NamedTuple):
    """Sizes a job may have, ascending from 0, and what each costs."""

    sizes: tuple[int, ...]
    costs: tuple[float, ...]


def cheapest_sizes(jobs: Sequence[Options], gpus: int) -> list[int]:
    """Return a size for each job, together at most `gpus` GPUs; at equal cost the smaller size wins."""
    best = np.zeros(gpus + 1)  # [GPUs handed out so far at most]
    chosen: list[NDArray[np.int64]] = []
    for options in jobs:
        margin = np.full(options.sizes[-1], np.inf)
        tried = np.concatenate((margin, best))[_before(options.sizes, gpus)]  # [option, GPUs]
        tried += np.array(options.costs)[:, None]
        cheapest = tried.argmin(axis=0)
        best = tried[cheapest, np.arange(gpus + 1)]
        chosen.append(np.array(options.sizes)[cheapest])
    left = gpus
    sizes: list[int] = []
    for choice in reversed(chosen):
        sizes.append(int(choice[left]))
        left -= sizes[-1]
    return sizes[::-1]


@lru_cache(maxsize=256)
def _before(sizes: tuple[int, ...], gpus: int) -> NDArray[np.int64]:
    """For each size and each number of GPUs: where the number without the size is, behind the margin."""
    before: NDArray[np.int64] = sizes[-1] + np.arange(gpus + 1)[None, :] - np.array(sizes)[:, None]
    return before
