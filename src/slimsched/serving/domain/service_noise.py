"""Service noise: equal batches do not take equal time, and a device's pace drifts.

A batch takes  profile · e^(σ·z) · pace(t).  z is drawn anew for each batch. The pace wanders around 1 and
keeps its direction for about a second, because slow spells of a device last longer than a batch.
"""

from math import exp, log, sqrt

import numpy as np
from msgspec import Struct

from slimsched.kernel.quantity import Amount

MEASURED_SPREAD = 0.2
"""Spread of repeated batches on the H200 of the shipped profiles (0.19 to 0.22); on a CPU core it is 0.09."""

DECILES = 2.563
"""Distance between the 10th and the 90th percentile of a normal distribution, in deviations."""

STEP_S = 0.1
"""How long one value of the pace holds."""

DRIFT_S = 1.0
"""How long the pace keeps its direction."""

DRAWN = 1024
"""Factors that are drawn at once."""


class ServiceNoise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much batch times vary: factors on the profile's own spread, and the drift of the pace.

    `batches` multiplies the spread that the profile was measured with. `drift` is the relative deviation of
    the pace. Both 0: batches take exactly what the profile says.
    """

    batches: Amount = 1.0  # factor on the profile's own spread; 0: none
    drift: Amount = 0.03  # relative deviation of a device's pace; 0: none

    @property
    def is_on(self) -> bool:
        """Whether anything varies."""
        return self.batches > 0.0 or self.drift > 0.0


class NoiseSource:
    """Draws the factors of one server; the same seed gives the same factors."""

    def __init__(self, noise: ServiceNoise, spread: float, seed: tuple[int, ...]) -> None:
        self._rng = np.random.default_rng(seed)
        self._sigma = log(1.0 + noise.batches * spread) / DECILES
        self._drift = noise.drift
        self._kept = exp(-STEP_S / DRIFT_S)
        self._factors: list[float] = []
        self._paces: list[float] = []
        self._wander = 0.0

    def factor(self, now_s: float) -> float:
        """Return how many times as long as usual a batch takes that begins now."""
        if not self._factors:
            drawn = self._rng.standard_normal(DRAWN) * self._sigma - 0.5 * self._sigma**2
            self._factors = np.exp(drawn).tolist()
        step = int(now_s / STEP_S)
        while step >= len(self._paces):
            self._go_on()
        return self._factors.pop() * self._paces[step]

    def _go_on(self) -> None:
        """Draw the pace of the next time steps."""
        turns = self._rng.standard_normal(DRAWN).tolist()
        for turn in turns:
            self._wander = self._kept * self._wander + sqrt(1.0 - self._kept**2) * turn
            self._paces.append(exp(self._drift * self._wander - 0.5 * self._drift**2))
