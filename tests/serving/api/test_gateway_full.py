"""A gateway that cannot keep up says so: its state is what the dashboard shows."""

from typing import Any, cast

import pytest

from slimsched.serving.api.limits import Limits
from slimsched.serving.api.service import FULL_LAG_S, InferenceService, Phase


class Behind:
    """As much of a cluster as the state depends on: how late its event loop is."""

    models, arena = (), None

    def __init__(self, lag_s: float) -> None:
        self.lag_s = lag_s


def service(loop_s: float, calls_s: float, phase: Phase = Phase.READY) -> InferenceService:
    made = InferenceService(cast(Any, Behind(loop_s)), Limits())
    made.phase = phase
    for _ in range(500):
        made.tally.lag_s.note(calls_s)
    return made


def test_it_is_full_while_calls_wait_and_the_loop_is_late() -> None:
    assert service(2 * FULL_LAG_S, 2 * FULL_LAG_S).state == "gateway full"


@pytest.mark.parametrize(("loop_s", "calls_s"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_one_late_round_or_old_calls_alone_do_not_make_it_full(loop_s: float, calls_s: float) -> None:
    assert service(loop_s, calls_s).state == "ready"


def test_a_draining_service_says_that_it_drains() -> None:
    assert service(1.0, 1.0, Phase.DRAINING).state == "draining"
