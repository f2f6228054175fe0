import numpy as np
import pytest

from cluster import MODEL, path, small_cluster
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum

CLUSTER = small_cluster()
BEST = MODEL.quality.by_plan.max()
NARROWEST, WIDEST = path(0.25, 0.25, 0.25, 0.25), path(1.0, 1.0, 1.0, 1.0)


def test_at_little_load_the_bound_is_the_best_plan() -> None:
    best = fluid_optimum(CLUSTER, 1.0)
    assert best.accuracy == pytest.approx(BEST)
    assert best.served_share == pytest.approx(1.0)


def test_the_bound_falls_with_the_load_and_never_below_what_is_served_at_the_narrowest() -> None:
    capacity = capacity_per_s(CLUSTER, WIDEST)
    bounds = [fluid_optimum(CLUSTER, share * capacity).accuracy for share in (0.5, 1.5, 3.0, 6.0, 12.0, 40.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[2] > bounds[4] > bounds[5]


def test_past_all_capacity_only_part_is_served_and_the_rest_counts_as_wrong() -> None:
    beyond = 2 * capacity_per_s(CLUSTER, NARROWEST)
    best = fluid_optimum(CLUSTER, beyond)
    assert best.served_share < 1.0
    assert best.accuracy < BEST * best.served_share + 1e-9


def test_the_optimum_is_feasible_no_server_works_more_than_all_the_time() -> None:
    rate = 2 * capacity_per_s(CLUSTER, WIDEST)
    best = fluid_optimum(CLUSTER, rate)
    fastest = np.array(
        [sum(CLUSTER.work_s[leg].min() for leg in MODEL.legs(plan)) for plan in MODEL.tree.plans]
    )
    assert float(best.rates_per_s[0] @ fastest) <= len(CLUSTER) + 1e-6


def test_a_power_budget_is_kept_and_costs_accuracy() -> None:
    rate = capacity_per_s(CLUSTER, WIDEST)
    free = fluid_optimum(CLUSTER, rate)
    tight = fluid_optimum(CLUSTER, rate, active_power_w=0.3 * free.power_w)
    assert tight.power_w <= 0.3 * free.power_w + 1e-6
    assert tight.accuracy < free.accuracy
