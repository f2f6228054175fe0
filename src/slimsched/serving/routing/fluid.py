"""The fluid optimum: the best accuracy a cluster can give at a load, as a linear programme.

Plans are mixed (`fluid_programme.py`). The programme ignores waiting, links and whole numbers, and batches
are as efficient as the profile allows. So it is an upper bound: no router that decides without looking at the
examples can do better. `sure_optimum` is the bound of routers that do look (`sure_bound.py`).
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.routing.fluid_programme import FluidProgramme, plan_ways

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
    models, given = cluster.models, shares_of(cluster, shares)
    ways = plan_ways(models)
    solved = FluidProgramme(cluster, rate_per_s, given, active_power_w).solve(ways)
    z = [solved.shares[part] for part in _parts(models)]
    value = np.array([way.value for way in ways])
    return FluidOptimum(
        rate_per_s=rate_per_s,
        accuracy=float(value @ solved.shares) / float(np.dot(given, [model.weight for model in models])),
        served_share=float(solved.shares.sum()),
        power_w=solved.power_w,
        accuracies=tuple(
            float(model.scored.by_plan @ rates) / float(share) if share > 0.0 else 0.0
            for model, rates, share in zip(models, z, given, strict=True)
        ),
        rates_per_s=tuple(rates * rate_per_s for rates in z),
    )


def shares_of(cluster: Cluster, shares: Sequence[float] | None) -> Values:
    """Return the models' shares of the rate; where none are given, active models have equal ones."""
    equal = [float(model in cluster.active) / max(1, len(cluster.active)) for model in cluster.models]
    return np.asarray(shares if shares is not None else equal, dtype=float)


def capacity_per_s(cluster: Cluster, plan: Path, model: int = 0) -> float:
    """Return how many requests per second the whole cluster can serve by one plan, in the fluid sense."""
    return float((1.0 / cluster.plan_s(cluster.models[model], plan)).sum())


def _parts(models: Sequence[ServedModel]) -> list[slice]:
    """Return the columns of each model's plans."""
    ends = np.cumsum([len(model.tree.plans) for model in models])
    return [slice(end - len(model.tree.plans), end) for model, end in zip(models, ends, strict=True)]
