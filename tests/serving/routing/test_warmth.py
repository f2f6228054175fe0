"""Warm widths: what a busy server can run at once."""

import numpy as np

from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.warmth import DUE_S, KEPT_S, Warmth


def looked(now_s: float, *utilization: float) -> Observation:
    seen = Observation(len(utilization))
    seen.now_s, seen.segment = now_s, 2
    seen.utilization[:] = utilization
    return seen


def test_a_busy_server_is_cold_above_the_widest_width_it_was_asked_for() -> None:
    warmth = Warmth(2)
    warmth.ask(2, 0, 1, 0.0)
    warmth.ask(2, 1, 1, 0.0)
    cold = warmth.cold(looked(1.0, 0.97, 0.5))
    assert cold.T.tolist() == [[False, False, True, True], [False] * 4]


def test_where_all_is_cold_anything_may_be_asked_for() -> None:
    warmth = Warmth(1)
    assert not warmth.cold(looked(0.0, 1.0)).any()
    warmth.ask(2, 0, 3, 0.0)
    assert not warmth.cold(looked(KEPT_S + 0.1, 1.0)).any()


def test_the_widest_warm_width_is_due_before_it_is_forgotten() -> None:
    warmth = Warmth(1)
    warmth.ask(2, 0, 3, 0.0)
    warmth.ask(2, 0, 1, 2.5)
    assert warmth.due(2, 0, DUE_S - 0.1) is None
    assert warmth.due(2, 0, DUE_S + 0.1) == 3
    warmth.ask(2, 0, 3, DUE_S + 0.1)
    assert warmth.due(2, 0, DUE_S + 0.2) is None


def test_a_server_that_was_down_is_cold() -> None:
    warmth = Warmth(2)
    warmth.ask(2, 0, 3, 0.0)
    warmth.forget(np.array([True, False]))
    assert warmth.due(2, 0, DUE_S + 0.1) is None
