"""Judging answers by price, time and trust, with the shipped model's own table."""

import numpy as np

from slimsched.serving.domain.request import NEVER_S, Request, Trail
from slimsched.serving.gateway.goal import CostToGo
from slimsched.serving.gateway.observation import Observation, Verdict
from slimsched.serving.gateway.stop_when_sure import LEAST_CHECKS, Judgement, Trust
from slimsched.serving.scenario.files import load_scenario

CLUSTER = load_scenario("laptop").cluster
MODEL = CLUSTER.models[0]
FULL_S = CLUSTER.plan_s(MODEL, MODEL.spec.widest)
WORK = {key: float(seconds[0] / FULL_S[0]) for key, seconds in CLUSTER.work_s.items()}
NARROW, WIDEST = MODEL.spec.narrowest, MODEL.spec.widest


def judgement() -> Judgement:
    cost_to_go = CostToGo(MODEL, [WORK], [WORK], sure=True)
    return Judgement(CLUSTER, 0, cost_to_go, [0, 0], FULL_S.tolist())


def judge(
    confidence: float, price: float, *, left_s: float = 10.0, judged: Judgement | None = None, **asked: float
) -> Verdict:
    request = Request(id=0, arrival_s=0.0, path=NARROW, trail=Trail(homes=(0,) * 4), **asked)  # type: ignore[arg-type]
    seen = Observation(len(CLUSTER))
    return (judged or judgement()).judge(request, confidence, (price, 0.0), left_s, seen)


def test_a_sure_answer_is_sent_and_an_unsure_one_goes_on_with_a_wider_plan() -> None:
    assert judge(0.999, 0.05).plan == -1
    unsure = judge(0.01, 0.05)
    assert unsure.hope > unsure.sure
    assert MODEL.tree.plans[unsure.plan] > NARROW


def test_the_higher_the_price_the_fewer_answers_go_on() -> None:
    goes_on = [
        sum(judge(float(c), price).plan >= 0 for c in np.linspace(0.0, 1.0, 21)) for price in (0.02, 0.2, 2.0)
    ]
    assert goes_on[0] > goes_on[1] >= goes_on[2]
    assert judge(0.01, 0.0).plan == -1, "where time is free the widest plan runs first"


def test_no_wider_plan_begins_that_would_end_too_late_or_take_too_much_energy() -> None:
    assert judge(0.01, 0.05, left_s=1e-4).why == "no time for a wider plan"
    assert judge(0.01, 0.05, max_energy_j=1e-9).why == "the energy limit allows no wider plan"
    assert judge(0.01, 0.05, max_energy_j=1e9, deadline_s=NEVER_S).plan >= 0


def test_checks_are_rare_and_agreement_as_measured_keeps_the_trust() -> None:
    judged = judgement()
    verdicts = [judge(0.95, 0.1, judged=judged) for _ in range(5000)]
    checks = [verdict for verdict in verdicts if verdict.check]
    assert 0 < len(checks) <= 50
    assert {MODEL.tree.plans[verdict.plan] for verdict in checks} == {WIDEST}


def test_answers_that_agree_less_than_they_should_end_the_trust_and_agreement_brings_it_back() -> None:
    trust, rng = Trust(), np.random.default_rng(0)
    for agrees in rng.uniform(size=300) < 0.95:
        trust.note(0.95, bool(agrees))
    assert trust.holds
    while trust.holds:
        trust.note(0.95, bool(rng.uniform() < 0.75))
    assert LEAST_CHECKS < trust.checks < 500
    for agrees in rng.uniform(size=2000) < 0.95:
        trust.note(0.95, bool(agrees))
    assert trust.holds


def test_while_the_confidence_is_not_trusted_every_answer_is_sent_at_the_plans_own_accuracy() -> None:
    judged = judgement()
    judged.trust.holds = False
    verdict = judge(0.01, 0.05, judged=judged)
    assert (verdict.plan, verdict.sure) == (-1, MODEL.quality.accuracy(NARROW))
