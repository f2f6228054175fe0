"""The fluid optimum: the best accuracy a cluster can give at a load, as a linear programme.

z[m, p] is the rate at which plan p of model m is served; y[k, d] is the rate at which key k runs on devices
of kind d. A device works at most all the time, every segment of every request runs somewhere, and batches are
as efficient as the profile allows. The programme ignores waiting, links and whole numbers. So it is an upper
bound: no router that decides without looking at the examples can do better.

    max Σ_mp v[m] acc[m, p] z[m, p]   subject to   Σ_p z[m, p] ≤ λ[m],   Σ_d y[k, d] = Σ_{p uses k} z[m, p],
                                      Σ_k work[k, d] y[k, d] ≤ n_d,   Σ_{k,d} energy[k, d] y[k, d] ≤ P

v[m] is the weight of model m, set by the operator.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.kernel.errors import SlimError
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel

Values = NDArray[np.float64]


class FluidOptimum(Struct, frozen=True, kw_only=True):
    """The solution of the programme. Requests that cannot be served count as wrong.

    `accuracy` is the mean over all requests, weighted where models have weights. `accuracies` holds the mean
    of each model. `rates_per_s` holds z by model and plan.
    """

    rate_per_s: float
    accuracy: float
    served_share: float
    power_w: float
    accuracies: tuple[float, ...]
    rates_per_s: tuple[Values, ...]


def fluid_optimum(
    cluster: Cluster,
    rate_per_s: float,
    *,
    shares: Sequence[float] | None = None,
    active_power_w: float | None = None,
) -> FluidOptimum:
    """Solve the programme, optionally with a budget for power above idle.

    `shares` are the models' shares of the rate; where none are given, active models have equal ones.
    """
    from scipy.optimize import linprog

    models = cluster.models
    equal = [float(model in cluster.active) / max(1, len(cluster.active)) for model in models]
    given = np.asarray(shares if shares is not None else equal, dtype=float)
    keys = [key for model in models for key in model.keys.values()]
    kinds: dict[int, tuple[Profile, int]] = {}
    for profile in cluster.profiles:
        kinds[id(profile)] = (profile, kinds.get(id(profile), (profile, 0))[1] + 1)
    limit = cluster.batch_limit
    work = np.array([[p.work_s(key, limit) for key in keys] for p, _ in kinds.values()])
    energy = np.array([[p.least_energy_j(key, limit) for key in keys] for p, _ in kinds.values()])
    counts = np.array([float(count) for _, count in kinds.values()])

    plans, runs = sum(len(model.tree.plans) for model in models), work.size
    value = np.concatenate([model.weight * model.scored.by_plan for model in models])
    busy = np.zeros((len(kinds), plans + runs))  # columns: z over the rate, then y[d, k]
    for kind in range(len(kinds)):
        busy[kind, plans + kind * len(keys) : plans + (kind + 1) * len(keys)] = work[kind] * rate_per_s
    served = np.zeros((len(models), plans + runs))
    for number, part in enumerate(_parts(models)):
        served[number, part] = 1.0
    drawn_w = np.concatenate([np.zeros(plans), energy.ravel() * rate_per_s])
    budget = [] if active_power_w is None else [active_power_w]
    solved = linprog(
        np.concatenate([-value, np.zeros(runs)]),
        A_ub=np.vstack([served, busy, *([drawn_w] if budget else [])]),
        b_ub=np.concatenate([given, counts, budget]),
        A_eq=np.hstack([-_uses(models, keys), *[np.eye(len(keys))] * len(kinds)]),
        b_eq=np.zeros(len(keys)),
        method="highs",
    )
    if solved.x is None:
        raise SlimError(
            f"the fluid bound has no solution at {rate_per_s:g} requests per second: {solved.message}"
        )
    z = [solved.x[part] for part in _parts(models)]
    return FluidOptimum(
        rate_per_s=rate_per_s,
        accuracy=float(value @ solved.x[:plans]) / float(np.dot(given, [model.weight for model in models])),
        served_share=float(solved.x[:plans].sum()),
        power_w=float(drawn_w @ solved.x),
        accuracies=tuple(
            float(model.scored.by_plan @ rates) / float(share) if share > 0.0 else 0.0
            for model, rates, share in zip(models, z, given, strict=True)
        ),
        rates_per_s=tuple(rates * rate_per_s for rates in z),
    )


def capacity_per_s(cluster: Cluster, plan: Path, model: int = 0) -> float:
    """Return how many requests per second the whole cluster can serve by one plan, in the fluid sense."""
    return float((1.0 / cluster.plan_s(cluster.models[model], plan)).sum())


def _parts(models: Sequence[ServedModel]) -> list[slice]:
    """Return the columns of each model's plans."""
    ends = np.cumsum([len(model.tree.plans) for model in models])
    return [slice(end - len(model.tree.plans), end) for model, end in zip(models, ends, strict=True)]


def _uses(models: Sequence[ServedModel], keys: list[Key]) -> Values:
    """Return a matrix with 1 where a plan (column) runs a key (row)."""
    row = {key: number for number, key in enumerate(keys)}
    plans = [(model, plan) for model in models for plan in model.tree.plans]
    uses = np.zeros((len(keys), len(plans)))
    for column, (model, plan) in enumerate(plans):
        for key in model.legs(plan):
            uses[row[key], column] = 1.0
    return uses
