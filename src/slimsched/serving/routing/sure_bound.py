"""The fluid optimum of routers that stop when sure: the best mix of plans and of policies that look.

A policy begins with a plan; after each answer, the level of its confidence says whether to stop or which plan
goes on, from the last activation that both share, up to three plans in all. Policies are chosen by the table
that routers choose by, and valued by counting on the examples that runs are scored on. They are found one by
one: at the prices of the programme so far, the best policy is added, until none is better.

The input-blind bound (`fluid.py`) holds for every router that does not look at examples. This one is what
looking adds, as far as the model's table can tell; it is never below the other.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.quality import EscalationTable
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key
from slimsched.serving.routing.cost_to_go import CostToGo
from slimsched.serving.routing.fluid import shares_of
from slimsched.serving.routing.fluid_programme import FluidProgramme, Way, plan_ways
from slimsched.serving.routing.judgement import MOST_PLANS
from slimsched.serving.routing.router import Judge, Router

MOST_ROUNDS = 80
"""How many policies per model are tried at most."""

TRIED = 6
"""How many first plans are tried at a time."""

LEAST_GAIN = 1e-6


class SureOptimum(Struct, frozen=True, kw_only=True):
    """The best mix: its accuracy over all requests, the share that is served, and its power above idle.

    `further` is the share of requests for which a second plan runs.
    """

    rate_per_s: float
    accuracy: float
    served_share: float
    power_w: float
    further: float


class Policy(Struct, frozen=True):
    """A way to serve requests, and the share of requests for which a second plan runs."""

    way: Way
    further: float


def can_be_sure(cluster: Cluster) -> bool:
    """Whether some active model says how sure it is, and has been measured."""
    return any(model.quality.escalation is not None for model in cluster.active)


def judges(router: Router, cluster: Cluster) -> bool:
    """Whether a router judges answers of some active model."""
    return isinstance(router, Judge) and any(router.keeps(model.number) for model in cluster.active)


def sure_accuracy_at(cluster: Cluster, rate_per_s: float, shares: Sequence[float] = ()) -> float:
    """Return the accuracy of the best mix at a rate; 0 if no model says how sure it is."""
    found = sure_optimum(cluster, rate_per_s, shares=shares or None)
    return 0.0 if found is None else found.accuracy


def sure_optimum(
    cluster: Cluster,
    rate_per_s: float,
    *,
    shares: Sequence[float] | None = None,
    active_power_w: float | None = None,
) -> SureOptimum | None:
    """Find the best mix of plans and policies; None if no model says how sure it is."""
    if not can_be_sure(cluster):
        return None
    given = shares_of(cluster, shares)
    programme = FluidProgramme(cluster, rate_per_s, given, active_power_w)
    policies = [Policy(way, 0.0) for way in plan_ways(cluster.models)]
    solved = programme.solve([policy.way for policy in policies])
    for _ in range(MOST_ROUNDS):
        found = [
            policy
            for model in cluster.active
            for policy in best_policies(model, solved.key_prices)
            if _gain(policy.way, solved.key_prices, float(solved.model_prices[model.number])) > LEAST_GAIN
        ]
        if not found:
            break
        policies += found
        solved = programme.solve([policy.way for policy in policies])
    worth = float(np.dot(given, [model.weight for model in cluster.models]))
    return SureOptimum(
        rate_per_s=rate_per_s,
        accuracy=float(np.dot([policy.way.value for policy in policies], solved.shares)) / worth,
        served_share=float(solved.shares.sum()),
        power_w=solved.power_w,
        further=float(np.dot([policy.further for policy in policies], solved.shares)),
    )


def _gain(way: Way, key_prices: dict[Key, float], request_price: float) -> float:
    """Return by how much a way is better than what the programme has, per request."""
    return way.value - sum(share * key_prices[key] for key, share in way.uses.items()) - request_price


def best_policies(model: ServedModel, key_prices: dict[Key, float]) -> list[Policy]:
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


def count_policy(model: ServedModel, table: EscalationTable, after: NDArray[np.int64], first: int) -> Policy:
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
    return Policy(Way(model=model.number, value=model.weight * float(hits.mean()), uses=uses), further)
