"""The linear programme behind the fluid bounds: which ways of serving requests to mix at a load.

A *way* is one way to serve a request: its value, and how often it runs each key in the mean. A plan is a way;
so is a policy that looks at how sure the model is. z[w] is the rate of way w, y[k, d] the rate at which key k
runs on devices of kind d. A device works at most all the time, and every key of every way runs somewhere.

    max Σ_w v[w] z[w]   subject to   Σ_{w of m} z[w] ≤ λ[m],   Σ_d y[k, d] = Σ_w uses[k, w] z[w],
                                     Σ_k work[k, d] y[k, d] ≤ n_d,   Σ_{k,d} energy[k, d] y[k, d] ≤ P
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key

Values = NDArray[np.float64]


class Way(Struct, frozen=True, kw_only=True):
    """One way to serve a request of a model: what it is worth, and how often it runs each key."""

    model: int
    value: float
    uses: dict[Key, float]


class Solved(Struct, frozen=True, kw_only=True):
    """The solution: the share of the rate of each way, and the prices that hold there.

    `key_prices` says what running a key costs, `model_prices` what one more request of a model is worth.
    """

    shares: Values
    power_w: float
    key_prices: dict[Key, float]
    model_prices: Values


class FluidProgramme:
    """The programme of one cluster at one load; solve it for any ways."""

    def __init__(
        self, cluster: Cluster, rate_per_s: float, shares: Values, active_power_w: float | None
    ) -> None:
        self._models, self._rate_per_s, self._shares = len(cluster.models), rate_per_s, shares
        self.keys = [key for model in cluster.models for key in model.keys.values()]
        self._row = {key: number for number, key in enumerate(self.keys)}
        kinds: dict[int, tuple[Profile, int]] = {}
        for profile in cluster.profiles:
            kinds[id(profile)] = (profile, kinds.get(id(profile), (profile, 0))[1] + 1)
        limit = cluster.batch_limit
        self._work = np.array([[p.work_s(key, limit) for key in self.keys] for p, _ in kinds.values()])
        energy = np.array([[p.least_energy_j(key, limit) for key in self.keys] for p, _ in kinds.values()])
        self._drawn_w = energy.ravel() * rate_per_s
        self._counts = np.array([float(count) for _, count in kinds.values()])
        self._budget = [] if active_power_w is None else [active_power_w]

    def solve(self, ways: Sequence[Way]) -> Solved:
        """Find the best mix of these ways."""
        from scipy.optimize import linprog

        kinds, keys = self._work.shape
        count, runs = len(ways), self._work.size
        busy = np.zeros((kinds, count + runs))  # columns: z over the rate, then y[d, k]
        for kind in range(kinds):
            at = count + kind * keys
            busy[kind, at : at + keys] = self._work[kind] * self._rate_per_s
        served = np.zeros((self._models, count + runs))
        uses = np.zeros((keys, count))
        for column, way in enumerate(ways):
            served[way.model, column] = 1.0
            for key, share in way.uses.items():
                uses[self._row[key], column] = share
        drawn_w = np.concatenate([np.zeros(count), self._drawn_w])
        solved = linprog(
            np.concatenate([[-way.value for way in ways], np.zeros(runs)]),
            A_ub=np.vstack([served, busy, *([drawn_w] if self._budget else [])]),
            b_ub=np.concatenate([self._shares, self._counts, self._budget]),
            A_eq=np.hstack([-uses, *[np.eye(keys)] * kinds]),
            b_eq=np.zeros(keys),
            method="highs",
        )
        if solved.x is None:
            raise SlimError(
                f"the fluid bound has no solution at {self._rate_per_s:g} requests per second: "
                f"{solved.message}"
            )
        return Solved(
            shares=solved.x[:count],
            power_w=float(drawn_w @ solved.x),
            key_prices=self._key_prices(-solved.ineqlin.marginals[self._models :]),
            model_prices=-solved.ineqlin.marginals[: self._models],
        )

    def _key_prices(self, prices: Values) -> dict[Key, float]:
        """Price each key where it is cheapest, by the prices of the kinds of devices, then of power."""
        kinds = len(self._work)
        by_kind = prices[:kinds, None] * self._work * self._rate_per_s
        if self._budget:
            by_kind += prices[kinds] * self._drawn_w.reshape(self._work.shape)
        return dict(zip(self.keys, by_kind.min(axis=0).tolist(), strict=True))


def plan_ways(models: Sequence[ServedModel]) -> list[Way]:
    """Return every plan of every model as a way, in order."""
    return [
        Way(
            model=model.number,
            value=model.weight * float(accuracy),
            uses=dict.fromkeys(model.legs(plan), 1.0),
        )
        for model in models
        for plan, accuracy in zip(model.tree.plans, model.scored.by_plan, strict=True)
    ]
