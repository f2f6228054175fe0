from collections.abc import Sequence

import numpy as np
import pytest

from cluster import MODEL, path, small_cluster, toy_model
from slimsched.serving.domain.cluster import Cluster, Link
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum

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


ONE = toy_model("one", segments=[("narrow", "wide")], accuracies=[0.5, 0.9])
TWO = toy_model("two", segments=[("narrow", "wide")], accuracies=[0.6, 0.8])


def one_server(*models: ServedModel, seconds: Sequence[Sequence[float]]) -> Cluster:
    """A server that runs one request at a time, for so long by model and choice."""
    numbered = [model.numbered(number) for number, model in enumerate(models)]
    parts = []
    for model, by_choice in zip(numbered, seconds, strict=True):
        keys = list(model.keys.values())
        parts.append(
            Profile(
                name="one by one",
                source="made for a test",
                batches=[1],
                concurrency=[1],
                latency_table_s={key: [[by_choice[key.choice]]] for key in keys},
                energy_table_j={key: [1.0] for key in keys},
                instance_bytes={key.place: 1 for key in keys},
                load_s={key.place: 0.001 for key in keys},
                idle_w=10.0,
                element_bytes=2,
            )
        )
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=0.0)
    return Cluster(
        names=["server"],
        profiles=[Profile.joined(parts)],
        models=numbered,
        links=[link],
        gateway_link=link,
        batch_limit=1,
    )


def test_two_models_share_a_server_as_worked_out_by_hand() -> None:
    """300 of each per second, narrow, take 0.6 s; of the rest, a millisecond gains 0.4 in one, 0.067 in two.

    So all of one run wide, which takes 0.3 s, and 33.3 of two per second in the 0.1 s that are left.
    """
    cluster = one_server(ONE, TWO, seconds=[(0.001, 0.002), (0.001, 0.004)])
    best = fluid_optimum(cluster, 600.0)
    assert best.rates_per_s[0] == pytest.approx([0.0, 300.0])
    assert best.rates_per_s[1] == pytest.approx([300.0 - 100 / 3, 100 / 3])
    assert best.accuracies == pytest.approx((0.9, 0.6 + 0.2 / 9))
    assert best.accuracy == pytest.approx((0.9 + 0.6 + 0.2 / 9) / 2)
    assert best.served_share == pytest.approx(1.0)


def test_a_model_that_weighs_more_gets_what_is_left_first() -> None:
    """At seven times the weight a millisecond gains 0.47 in two: 133.3 per second run wide, none of one."""
    cluster = one_server(ONE, TWO.numbered(0, weight=7.0), seconds=[(0.001, 0.002), (0.001, 0.004)])
    best = fluid_optimum(cluster, 600.0)
    assert best.accuracies == pytest.approx((0.5, 0.6 + 0.2 * 4 / 9))
    assert best.accuracy == pytest.approx((0.5 + 7 * (0.6 + 0.2 * 4 / 9)) / 8)


def test_shares_of_the_requests_count() -> None:
    cluster = one_server(ONE, TWO, seconds=[(0.001, 0.002), (0.001, 0.004)])
    best = fluid_optimum(cluster, 400.0, shares=(0.25, 0.75))
    assert best.rates_per_s[0] == pytest.approx([0.0, 100.0])
    assert best.rates_per_s[1] == pytest.approx([300.0 - 500 / 3, 500 / 3])


def test_a_second_model_that_nobody_asks_for_changes_nothing() -> None:
    rate = 1.5 * capacity_per_s(CLUSTER, WIDEST)
    both = small_cluster(models=[MODEL, TWO])
    alone, beside = fluid_optimum(CLUSTER, rate), fluid_optimum(both, rate, shares=(1.0, 0.0))
    assert beside.accuracy == pytest.approx(alone.accuracy)
    assert beside.accuracies == pytest.approx((alone.accuracy, 0.0))
    assert beside.power_w == pytest.approx(alone.power_w, rel=1e-4)


def test_a_second_model_that_costs_nothing_takes_nothing_from_the_first() -> None:
    alone = fluid_optimum(one_server(ONE, seconds=[(0.001, 0.002)]), 700.0)
    cluster = one_server(ONE, TWO, seconds=[(0.001, 0.002), (1e-12, 1e-12)])
    beside = fluid_optimum(cluster, 1400.0)
    assert alone.accuracy == pytest.approx(0.5 + 0.4 * 3 / 7)
    assert beside.accuracies == pytest.approx((alone.accuracy, 0.8))


def test_an_early_exit_is_taken_where_going_on_does_not_fit() -> None:
    exits = toy_model(segments=[("exit", "on"), ("end",)], plans=[(0,), (1, 0)], accuracies=[0.6, 0.9])
    cluster = one_server(exits, seconds=[(0.001, 0.001)])
    best = fluid_optimum(cluster, 800.0)
    assert best.rates_per_s[0] == pytest.approx([600.0, 200.0])
    assert capacity_per_s(cluster, (1, 0)) == pytest.approx(500.0)
    assert capacity_per_s(cluster, (0,)) == pytest.approx(1000.0)
