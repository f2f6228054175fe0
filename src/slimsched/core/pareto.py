"""Which of several offers are worth taking: no other one gives as much for the same or a lower cost."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Offer = TypeVar("Offer")


def unbeaten(offers: Iterable[Offer], of: Callable[[Offer], tuple[float, float]]) -> list[Offer]:
    """Return the offers that no other one beats, cheapest first; `of` gives an offer's cost and its value."""
    kept: list[Offer] = []
    most = -np.inf
    for (_, value), offer in sorted(
        ((of(offer), offer) for offer in offers), key=lambda one: (one[0][0], -one[0][1])
    ):
        if value > most:
            kept.append(offer)
            most = value
    return kept


def best_at_some_price(costs: NDArray[Any], values: NDArray[Any]) -> list[int]:
    """Return which offers have the most value less price times cost, at any price from 0; cheapest first.

    They are the corners of the concave hull of value over cost.
    """
    hull: list[int] = []
    for offer in np.lexsort((-values, costs)).tolist():
        if hull and values[offer] <= values[hull[-1]]:
            continue
        while len(hull) > 1:  # the last of them may lie on or below the line between its neighbours
            left, middle = hull[-2:]
            line = (values[offer] - values[left]) * (costs[middle] - costs[left])
            if (values[middle] - values[left]) * (costs[offer] - costs[left]) > line:
                break
            hull.pop()
        hull.append(offer)
    return hull
