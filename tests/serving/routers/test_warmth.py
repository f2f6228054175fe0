"""Warm choices: what a busy server can run at once."""

import numpy as np

from cluster import choice, small_cluster, toy_model
from slimsched.serving.gateway.observation import Observation
from slimsched.serving.routers.goal import DUE_S, KEPT_S, Warmth

CLUSTER = small_cluster((4.0, 1.0))


def looked(now_s: float, *utilization: float) -> Observation:
    seen = Observation(len(CLUSTER))
    seen.now_s, seen.segment = now_s, 2
    seen.utilization[: len(utilization)] = utilization
    return seen


def test_a_busy_server_is_cold_above_the_widest_width_it_was_asked_for() -> None:
    warmth = Warmth(CLUSTER)
    for server in (0, 1):
        warmth.ask(looked(0.0), server, choice(0.5))
    cold = warmth.cold(looked(1.0, 0.97, 0.5))
    assert cold.T.tolist() == [[False, False, True, True], [False] * 4]


def test_where_wider_does_not_contain_narrower_a_busy_server_may_still_be_asked_to_narrow() -> None:
    cluster = small_cluster((4.0, 1.0), models=[toy_model(segments=[("s", "m", "l")])])
    warmth, seen = Warmth(cluster), looked(1.0, 0.97)
    seen.segment = 0
    warmth.ask(seen, 0, 1)
    assert warmth.cold(seen).T.tolist() == [[False, False, True], [False] * 3]


def test_where_all_is_cold_anything_may_be_asked_for() -> None:
    warmth = Warmth(CLUSTER)
    assert not warmth.cold(looked(0.0, 1.0)).any()
    warmth.ask(looked(0.0), 0, choice(1.0))
    assert not warmth.cold(looked(KEPT_S + 0.1, 1.0)).any()


def test_the_widest_warm_width_is_due_before_it_is_forgotten() -> None:
    warmth = Warmth(CLUSTER)
    warmth.ask(looked(0.0), 0, choice(1.0))
    warmth.ask(looked(2.5), 0, choice(0.5))
    assert warmth.due(looked(DUE_S - 0.1), 0) is None
    assert warmth.due(looked(DUE_S + 0.1), 0) == choice(1.0)
    warmth.ask(looked(DUE_S + 0.1), 0, choice(1.0))
    assert warmth.due(looked(DUE_S + 0.2), 0) is None


def test_a_server_that_was_down_is_cold() -> None:
    warmth = Warmth(CLUSTER)
    warmth.ask(looked(0.0), 0, choice(1.0))
    warmth.forget(np.array([True, False]))
    assert warmth.due(looked(DUE_S + 0.1), 0) is None


def test_what_one_model_asked_for_does_not_warm_another() -> None:
    cluster = small_cluster((4.0, 1.0), models=[toy_model("one"), toy_model("two")])
    warmth, seen = Warmth(cluster), looked(1.0, 0.97)
    seen.segment = 1
    warmth.ask(seen, 0, 1)
    seen.model = 1
    warmth.ask(seen, 0, 0)
    assert warmth.cold(seen).T[0].tolist() == [False, True]
