"""What a choice is worth, if the request then goes on as well as the price of device time allows."""

import numpy as np
import pytest

from slimsched.serving.routers.learned import ChoiceValues
from slimsched.serving.scenario.files import load_scenario

PAPER = load_scenario("paper", accuracy="paper")
MODEL = PAPER.cluster.models[0]


def values(path: tuple[int, ...]) -> ChoiceValues:
    return ChoiceValues(PAPER.cluster, MODEL, path)


def test_where_nothing_queues_a_choice_is_worth_the_best_plan_that_begins_with_it() -> None:
    for path in ((), (3,), (1, 2), (0, 1, 2)):
        best = np.array([MODEL.quality.best_reachable((*path, choice)) for choice in range(4)])
        assert values(path).gain_on(0, 0.0) == pytest.approx(best - best[0])


def test_the_widest_first_segment_is_worth_something_though_random_plans_hide_it() -> None:
    expected = [MODEL.quality.expected((choice,)) for choice in (1, 3)]
    assert expected[1] - expected[0] == pytest.approx(0.0, abs=1e-4)
    gain = values(()).gain_on(0, 0.0)
    assert gain[3] > gain[1] + 0.001


@pytest.mark.parametrize("price_per_s", [0.0, 3.0, 30.0, 300.0, 3000.0])
def test_no_plan_that_is_best_at_some_price_is_left_out(price_per_s: float) -> None:
    worth = np.full((4, len(PAPER.cluster)), -np.inf)
    for plan in MODEL.tree.plans:
        rest_s = sum(PAPER.cluster.work_s[key] for key in MODEL.legs(plan)[1:])
        worth[plan[0]] = np.maximum(worth[plan[0]], MODEL.quality.accuracy(plan) - price_per_s * rest_s)
    prices = np.full(len(PAPER.cluster), price_per_s)
    gain = values(()).gain(prices)
    assert gain == pytest.approx(worth - worth[0])
    assert gain[:, 2] == pytest.approx(values(()).gain_on(2, price_per_s))
