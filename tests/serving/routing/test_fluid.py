import numpy as np
import pytest

from cluster import small_cluster
from slimsched.models.slimresnet.width import WIDTH_TUPLES
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum

CLUSTER = small_cluster()


def test_at_little_load_the_bound_is_the_best_tuple() -> None:
    best = fluid_optimum(CLUSTER, 1.0)
    assert best.accuracy == pytest.approx(CLUSTER.accuracy.by_tuple.max())
    assert best.served_share == pytest.approx(1.0)


def test_the_bound_falls_with_the_load_and_never_below_what_is_served_at_the_narrowest() -> None:
    capacity = capacity_per_s(CLUSTER, (1.0,) * 4)
    bounds = [fluid_optimum(CLUSTER, share * capacity).accuracy for share in (0.5, 1.5, 3.0, 6.0, 12.0, 40.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > bounds[4] > bounds[5]


def test_past_all_capacity_only_part_is_served_and_the_rest_counts_as_wrong() -> None:
    beyond = 2 * capacity_per_s(CLUSTER, (0.25,) * 4)
    best = fluid_optimum(CLUSTER, beyond)
    assert best.served_share < 1.0
    assert best.accuracy < CLUSTER.accuracy.by_tuple.max() * best.served_share + 1e-9


def test_the_optimum_is_feasible_no_server_works_more_than_all_the_time() -> None:
    rate = 2 * capacity_per_s(CLUSTER, (1.0,) * 4)
    best = fluid_optimum(CLUSTER, rate)
    fastest = np.array(
        [
            sum(CLUSTER.work_s[KEYS[s, w, t[s - 1] if s else None]].min() for s, w in enumerate(t))
            for t in WIDTH_TUPLES
        ]
    )
    assert float(best.rates_per_s @ fastest) <= len(CLUSTER) + 1e-6


def test_a_power_budget_is_kept_and_costs_accuracy() -> None:
    rate = capacity_per_s(CLUSTER, (1.0,) * 4)
    free = fluid_optimum(CLUSTER, rate)
    tight = fluid_optimum(CLUSTER, rate, active_power_w=0.3 * free.power_w)
    assert tight.power_w <= 0.3 * free.power_w + 1e-6
    assert tight.accuracy < free.accuracy
