"""Fluid bounds: the best accuracy that any router could reach at a load, as linear programmes.

Plans are mixed (`FluidProgramme`). The programme ignores waiting, links and whole numbers, and batches are as
efficient as the profile allows. So `fluid_optimum` is an upper bound: no router that decides without looking
at the examples can do better. With `sure` it is the bound of routers that do look.
"""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.models.quality import EscalationTable
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster, Values
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key
from slimsched.serving.gateway.goal import CostToGo
from slimsched.serving.gateway.observation import Judge, Router
from slimsched.serving.gateway.stop_when_sure import MOST_PLANS

# -- The linear programme behind the fluid bounds: which ways of serving requests to mix at a load.
#
# A *way* is one way to serve a request: its value, and how often it runs each key in the mean. A plan is a
# way; so is a policy that looks at how sure the model is. z[w] is the rate of way w, y[k, d] the rate at
# which key k runs on devices of kind d. A device works at most all the time, and every key of every way runs
# somewhere.
#
#     max Σ_w v[w] z[w]   subject to   Σ_{w of m} z[w] ≤ λ[m],   Σ_d y[k, d] = Σ_w uses[k, w] z[w],
#                                      Σ_k work[k, d] y[k, d] ≤ n_d,   Σ_{k,d} energy[k, d] y[k, d] ≤ P


class Way(Struct, frozen=True, kw_only=True):
    """One way to serve a request of a model: what it is worth, and how often it runs each key.

    `further` is the share of requests for which a second plan runs.
    """

    model: int
    value: float
    uses: dict[Key, float]
    further: float = 0.0


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
            at = f"at {self._rate_per_s:g} requests per second"
            raise SlimError(f"the fluid bound has no solution {at}: {solved.message}")
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
        Way(model=model.number, value=model.weight * float(right), uses=dict.fromkeys(model.legs(plan), 1.0))
        for model in models
        for plan, right in zip(model.tree.plans, model.scored.by_plan, strict=True)
    ]


class FluidOptimum(Struct, frozen=True, kw_only=True):
    """The solution of the programme. Requests that cannot be served count as wrong.

    `accuracy` is the mean over all requests, weighted where models have weights. `accuracies` holds the mean
    of each model. `rates_per_s` holds z by model and plan, and `further` the share of requests for which a
    second plan runs.
    """

    accuracy: float
    served_share: float
    power_w: float
    accuracies: tuple[float, ...]
    rates_per_s: tuple[Values, ...]
    further: float


def fluid_optimum(
    cluster: Cluster,
    rate_per_s: float,
    *,
    shares: Sequence[float] = (),
    active_power_w: float | None = None,
    sure: bool = False,
) -> FluidOptimum:
    """Solve the programme, optionally with a budget for power above idle, and with policies that look.

    `shares` are the models' shares of the rate; where none are given, active models have equal ones.
    """
    models = cluster.models
    given = np.array(shares if len(shares) else [model in cluster.active for model in models], dtype=float)
    given /= 1 if len(shares) else max(1, len(cluster.active))
    programme = FluidProgramme(cluster, rate_per_s, given, active_power_w)
    ways = plan_ways(models)
    sizes = [len(model.tree.plans) for model in models]
    solved = programme.solve(ways)
    for _ in range(MOST_ROUNDS if sure else 0):
        better = []
        for model in cluster.active:
            for way in best_policies(model, solved.key_prices):
                cost = sum(share * solved.key_prices[key] for key, share in way.uses.items())
                if way.value - cost - float(solved.model_prices[model.number]) > LEAST_GAIN:
                    better.append(way)
        if not better:
            break
        ways += better
        solved = programme.solve(ways)
    value, weights = np.array([way.value for way in ways]), [model.weight for model in models]
    of_model, worth = np.bincount([way.model for way in ways], value * solved.shares), given * weights
    return FluidOptimum(
        accuracy=float(value @ solved.shares) / float(given @ weights),
        served_share=float(solved.shares.sum()),
        power_w=solved.power_w,
        accuracies=tuple(np.divide(of_model, worth, out=np.zeros(len(models)), where=worth > 0.0).tolist()),
        rates_per_s=tuple(np.split(solved.shares[: sum(sizes)] * rate_per_s, np.cumsum(sizes)[:-1])),
        further=float(np.dot([way.further for way in ways], solved.shares)),
    )


def capacity_per_s(cluster: Cluster, plan: Path, model: int = 0) -> float:
    """Return how many requests per second the whole cluster can serve by one plan, in the fluid sense."""
    return float((1.0 / cluster.plan_s(cluster.models[model], plan)).sum())


# -- The fluid optimum of routers that stop when sure: the best mix of plans and of policies that look.
#
# A policy begins with a plan; after each answer, the level of its confidence says whether to stop or which
# plan goes on, from the last activation that both share, up to three plans in all. Policies are chosen by the
# table that routers choose by, and valued by counting on the examples that runs are scored on. They are found
# one by one: at the prices of the programme so far, the best policy is added, until none is better.
#
# The input-blind bound (`fluid_optimum`) holds for every router that does not look at examples. This one is
# what looking adds, as far as the model's table can tell; it is never below the other.

MOST_ROUNDS = 80
"""How many policies per model are tried at most."""

TRIED = 6
"""How many first plans are tried at a time."""

LEAST_GAIN = 1e-6


def judges(router: Router, cluster: Cluster) -> bool:
    """Whether a router judges answers of some active model."""
    return isinstance(router, Judge) and any(router.keeps(model.number) for model in cluster.active)


def says_sure(cluster: Cluster) -> bool:
    """Whether some active model says how sure it is of an answer."""
    return any(model.quality.escalation is not None for model in cluster.active)


def best_policies(model: ServedModel, key_prices: dict[Key, float]) -> list[Way]:
    """Return the policies that the table finds best at these prices, each with another first plan."""
    prices = {key: key_prices[key] / model.weight for key in model.keys.values()}
    cost_to_go = CostToGo(model, [prices], [dict.fromkeys(prices, 0.0)], sure=True)
    table = cost_to_go.escalation
    if table is None:
        return []
    further = cost_to_go.further(1.0, 0.0)
    worth = further.value[0] - cost_to_go.total_work[0, table.plans]
    rows = worth.argsort()[::-1][:TRIED]
    return [count_policy(model, table, further.plan[0], table.plans[row]) for row in rows]


def count_policy(model: ServedModel, table: EscalationTable, after: NDArray[np.int64], first: int) -> Way:
    """Count what a policy gives and runs on the scored examples; `after[row, level]` is what follows."""
    examples, levels = model.scored.among, table.confidences.levels
    plan = np.full(len(examples), first)
    uses = dict.fromkeys(model.legs(model.tree.plans[first]), 1.0)
    further = 0.0
    for number in range(1, MOST_PLANS):
        following = plan.copy()
        for now in np.unique(plan):
            row = table.row.get(int(now))
            if row is not None:
                at = plan == now
                following[at] = after[row, levels[row, examples[at]]]
        moved = following != plan
        for now, then in {(int(a), int(b)) for a, b in zip(plan[moved], following[moved], strict=True)}:
            share = float(((plan == now) & (following == then)).mean())
            for key in model.legs(model.tree.plans[then])[table.kept[table.row[now], then] :]:
                uses[key] = uses.get(key, 0.0) + share
        further = float(moved.mean()) if number == 1 else further
        plan = following
    hits = model.scored.hits(plan, examples)
    assert hits is not None
    return Way(model=model.number, value=model.weight * float(hits.mean()), uses=uses, further=further)


# -- Curves of the fluid bounds over arrival rates, solved once and then interpolated.

POINTS, SURE_POINTS = 32, 12


class BoundCurve:
    """Correct answers per second by arrival rate. The curve is concave, so interpolation is just below it.

    Without `sure`, routers that stop when sure get the bound of those that do not; it takes a fifth as long.
    """

    def __init__(self, cluster: Cluster, shares: Sequence[float] = (), *, sure: bool = True) -> None:
        most = max(capacity_per_s(cluster, model.spec.narrowest, model.number) for model in cluster.models)
        least = min(capacity_per_s(cluster, model.spec.widest, model.number) for model in cluster.models)

        def curve(accuracy: Callable[[float], float], points: int) -> list[NDArray[np.float64]]:
            rates_per_s = np.geomspace(0.5 * least, 1.05 * most, points)
            return [rates_per_s, rates_per_s * [accuracy(rate) for rate in rates_per_s.tolist()]]

        self._any = curve(lambda rate: fluid_optimum(cluster, rate, shares=shares).accuracy, POINTS)
        self._sure = self._any
        if sure and says_sure(cluster):
            self._sure = curve(
                lambda rate: fluid_optimum(cluster, rate, shares=shares, sure=True).accuracy, SURE_POINTS
            )

    def accuracy(self, rate_per_s: float) -> float:
        """Return the best accuracy any router could reach; requests that cannot be served count as wrong."""
        return _at(rate_per_s, *self._any)

    def sure_accuracy(self, rate_per_s: float) -> float:
        """Return the same for routers that stop when sure."""
        return _at(rate_per_s, *self._sure)


def _at(rate_per_s: float, rates_per_s: NDArray[np.float64], correct_per_s: NDArray[np.float64]) -> float:
    """Interpolate between the points; below the first, accuracy stays the same."""
    rate_per_s = max(rate_per_s, rates_per_s[0])
    return float(np.interp(rate_per_s, rates_per_s, correct_per_s) / rate_per_s)
