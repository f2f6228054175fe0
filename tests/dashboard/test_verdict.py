"""Whether a limit is kept: the bound is right as often as it says, whatever the time of looking."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import GATEWAY_NAME
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import StatedLimit, parse_goal
from slimsched.serving.gateway.messages import Answer, WakeAt
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.telemetry.live_view import LiveView
from slimsched.serving.telemetry.verdict import judge, worst

MEAN = StatedLimit("mean<=40ms", "", "mean", 0.04)
P99 = StatedLimit("p99<=60ms", "", "p99", 0.06)
RUNS, LOOKS = 200, (8, 16, 20, 24, 32, 48, 64)


def blocks(totals: NDArray[np.float64], weights: object) -> NDArray[np.float64]:
    return np.stack([totals, np.broadcast_to(np.asarray(weights, dtype=float), totals.shape)], axis=1)


def said(limit: StatedLimit, sums: NDArray[np.float64]) -> set[str]:
    return {judge(limit, sums[:look]).word for look in LOOKS}


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_a_word_is_wrong_in_at_most_one_run_of_twenty_at_any_look(memory: float) -> None:
    rng, words = np.random.default_rng(1), Counter[str]()
    for _ in range(RUNS):
        steps = rng.normal(0.0, 0.3, 64)
        for n in range(1, 64):
            steps[n] += memory * steps[n - 1]
        words.update(said(MEAN, blocks(100 * (0.04 + 0.01 * steps), 100)))
    assert max(words["kept"], words["broken"]) <= 0.05 * RUNS, "the figure is the limit itself"


def test_a_quantile_at_its_limit_is_not_said_to_be_kept_or_broken() -> None:
    rng = np.random.default_rng(2)
    within = [np.asarray(rng.binomial(50, 0.99, 64), dtype=float) for _ in range(RUNS)]
    assert sum(bool(said(P99, blocks(one, 50)) & {"kept", "broken"}) for one in within) <= 0.05 * RUNS


def test_what_is_far_from_its_limit_is_decided() -> None:
    rng = np.random.default_rng(3)
    quick, slow = (blocks(100 * rng.normal(mean_s, 0.003, 64), 100) for mean_s in (0.036, 0.044))
    assert (judge(MEAN, quick).word, judge(MEAN, slow).word) == ("kept", "broken")
    assert judge(P99, blocks(np.full(64, 20.0), 20)).word == "kept"
    assert judge(P99, blocks(np.full(64, 18.0), 20)).word == "broken"


def test_too_few_answers_decide_nothing_and_it_is_said_how_many_are_missing() -> None:
    nothing = judge(P99, np.zeros((64, 2)))
    assert (nothing.word, nothing.figure, nothing.says) == ("undecided", None, "no answer yet")
    few = judge(P99, blocks(np.full(20, 10.0), 10))
    assert few.word == "undecided"
    assert few.missing is not None
    assert (
        judge(P99, blocks(np.full(64, (200 + few.missing) / 64 * 1.1), (200 + few.missing) / 64 * 1.1)).word
        == "kept"
    )
    assert worst([nothing, few]) == "undecided"


def test_a_limit_is_noted_when_it_is_broken_and_again_when_it_is_kept() -> None:
    scenario = load_scenario("paper", goal="p99<=60ms")
    router = make_router("goal", scenario.cluster, 0, parse_goal("p99<=60ms"))
    view = LiveView(Gateway(scenario.cluster, router, scenario.gateway), "goal")
    for step in range(800):
        now_s = 0.25 * step
        is_slow = 200 <= step < 300
        one = Request(id=step * 40, count=40, arrival_s=now_s - (0.2 if is_slow else 0.02), path=(0, 0, 0, 0))
        view.observe(now_s, GATEWAY_NAME, WakeAt(at_s=now_s), [Answer(requests=(one,))])
        frame = view.frame(now_s)
    words = [one.text.split(":")[0] for one in frame.happenings if one.kind == "verdict"]
    assert words == ["p99<=60ms is broken", "p99<=60ms is kept again"]
