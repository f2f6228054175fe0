"""The fluid optimum: the best accuracy a cluster can give at a load, as a linear programme.

Variables are the rates z[t] at which width tuples t are served and y[k, d] at which key k runs on devices
of kind d. Devices never work more than all the time, every segment of every request runs somewhere, and
batches are as efficient as the profile allows. Waiting, links and whole numbers are left out, so no router
can do better: an upper bound.

    max Σ_t acc[t] z[t]   subject to   Σ_t z[t] ≤ λ,   Σ_d y[k, d] = Σ_{t uses k} z[t],
                                       Σ_k work[k, d] y[k, d] ≤ n_d,   Σ_{k,d} energy[k, d] y[k, d] ≤ P
"""

from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.kernel.errors import SlimError
from slimsched.models.width import WIDTH_TUPLES
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.domain.profile import Profile

_KEYS = tuple(KEYS.values())


class FluidOptimum(Struct, frozen=True, kw_only=True):
    """`accuracy` counts requests that cannot be served as wrong; `rates_per_s` are z by tuple."""

    rate_per_s: float
    accuracy: float
    served_share: float
    power_w: float
    rates_per_s: NDArray[np.float64]


def fluid_optimum(
    cluster: Cluster, rate_per_s: float, *, active_power_w: float | None = None
) -> FluidOptimum:
    """Solve the programme, optionally with a budget for power above idle."""
    from scipy.optimize import linprog

    kinds: dict[int, tuple[Profile, int]] = {}
    for profile in cluster.profiles:
        kinds[id(profile)] = (profile, kinds.get(id(profile), (profile, 0))[1] + 1)
    work = np.array([[p.work_s(key, cluster.batch_limit) for key in _KEYS] for p, _ in kinds.values()])
    energy = np.array([[_image_j(p, key, cluster.batch_limit) for key in _KEYS] for p, _ in kinds.values()])
    counts = np.array([float(count) for _, count in kinds.values()])

    tuples, keys, runs = len(WIDTH_TUPLES), len(_KEYS), work.size  # columns: z over the rate, then y[d, k]
    accuracy = cluster.accuracy.by_tuple
    busy = np.zeros((len(kinds), tuples + runs))
    for kind in range(len(kinds)):
        busy[kind, tuples + kind * keys : tuples + (kind + 1) * keys] = work[kind] * rate_per_s
    served = np.concatenate([np.ones(tuples), np.zeros(runs)])
    drawn_w = np.concatenate([np.zeros(tuples), energy.ravel() * rate_per_s])
    budget = [] if active_power_w is None else [active_power_w]
    solved = linprog(
        np.concatenate([-accuracy, np.zeros(runs)]),
        A_ub=np.vstack([served, busy, *([drawn_w] if budget else [])]),
        b_ub=np.concatenate([[1.0], counts, budget]),
        A_eq=np.hstack([-_uses(), *[np.eye(keys)] * len(kinds)]),
        b_eq=np.zeros(keys),
        method="highs",
    )
    if solved.x is None:
        raise SlimError(
            f"the fluid bound has no solution at {rate_per_s:g} requests a second: {solved.message}"
        )
    shares = solved.x[:tuples]
    return FluidOptimum(
        rate_per_s=rate_per_s,
        accuracy=float(accuracy @ shares),
        served_share=float(shares.sum()),
        power_w=float(drawn_w @ solved.x),
        rates_per_s=shares * rate_per_s,
    )


def capacity_per_s(cluster: Cluster, widths: tuple[float, ...]) -> float:
    """Most requests a second the whole cluster can serve at one width tuple, in the fluid sense."""
    keys = [KEYS[s, w, widths[s - 1] if s else None] for s, w in enumerate(widths)]
    return float((1.0 / np.sum([cluster.work_s[key] for key in keys], axis=0)).sum())


def _image_j(profile: Profile, key: Key, batch_limit: int) -> float:
    """Least energy an image costs over batch sizes."""
    sizes = range(1, min(batch_limit, profile.top_batch) + 1)
    return min(profile.energy_j(key, size) / size for size in sizes)


@lru_cache(maxsize=1)
def _uses() -> NDArray[np.float64]:
    """1 where a key (row) is run by a width tuple (column)."""
    uses = np.zeros((len(_KEYS), len(WIDTH_TUPLES)))
    for column, widths in enumerate(WIDTH_TUPLES):
        for segment, width in enumerate(widths):
            key = KEYS[segment, width, widths[segment - 1] if segment else None]
            uses[_KEYS.index(key), column] = 1.0
    return uses
