"""The price of energy that keeps energy per answer, and power, below the limits that a goal states.

The gateway knows what every batch drew and how many requests it answered. The price rises while one of the
two is above its limit, and falls while both are below. Without a limit it stays 0.
"""

from collections.abc import Sequence
from math import exp

import numpy as np

from slimsched.serving.routing.goal import Goal

ENERGY_PRICES = np.geomspace(1e-4, 4.0, 64)
"""Prices of the energy of one widest plan, in accuracy. They come in steps: each makes tables of its own."""

AIM = 0.97
"""Share of a limit to aim for."""

SCALE = 0.05
"""Distance from that share, relative to the limit, at which the price moves at full pace."""

CHASE_PER_S = 2.5
LEAST_PER_S = 1e-6
"""Below this rate of answers nothing is known about energy per answer."""

SLACK = 1.03
"""A limit counts as yielding while the figure is above this multiple of it."""


class EnergyLimit:
    """Follows energy per answer and power, and sets the price."""

    def __init__(self, goal: Goal, idle_w: float) -> None:
        self._limits = [
            (limit, clause)
            for limit, clause in (
                (goal.energy_j, f"energy<={1e3 * goal.energy_j:g}mJ"),
                (goal.power_w, f"power<={goal.power_w:g}W"),
            )
            if limit
        ]
        self._is_energy = [clause.startswith("energy") for _, clause in self._limits]
        self._idle_w = idle_w
        self._sought = float(ENERGY_PRICES[0])
        self.price = 0.0
        self.binding = ""
        """The limit that sets the price now."""
        self.yielding: Sequence[str] = ()
        """The limits that are not kept now."""

    def update(self, active_w: float, answered_per_s: float, passed_s: float) -> None:
        """Move the price, given the power above idle and the rate of answers."""
        if not self._limits or answered_per_s < LEAST_PER_S:
            return
        energy_j = active_w / answered_per_s
        figures = [energy_j if is_energy else active_w + self._idle_w for is_energy in self._is_energy]
        shares = [figure / limit for figure, (limit, _) in zip(figures, self._limits, strict=True)]
        most = max(shares)
        over = max(-1.0, min(1.0, (most - AIM) / SCALE))
        low, high = float(ENERGY_PRICES[0]), float(ENERGY_PRICES[-1])
        self._sought = max(low, min(high, self._sought * exp(CHASE_PER_S * passed_s * over)))
        nearest = int(np.abs(np.log(ENERGY_PRICES / self._sought)).argmin())
        self.price = float(ENERGY_PRICES[nearest]) if nearest else 0.0
        self.binding = self._limits[shares.index(most)][1] if self.price else ""
        self.yielding = [
            clause for share, (_, clause) in zip(shares, self._limits, strict=True) if share > SLACK
        ]
