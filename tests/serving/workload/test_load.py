"""A load: requests drawn for one model or several, with what they ask for."""

import numpy as np
import pytest

from cluster import MODEL, toy_model
from slimsched.models.quality import QualityTable
from slimsched.models.spec import PlanError
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import NO_PLAN
from slimsched.serving.workload.load import Load

LOAD = Load(rate_per_s=2000.0, seconds=2.0)
FAMILY = toy_model("family", segments=[("0.25", "0.5")], number=1)
BITS = np.packbits(np.ones((256, 100), dtype=bool), axis=1)
MEASURED = MODEL.with_quality(QualityTable.from_bits(MODEL.tree, name="bits", correct=BITS, examples=100))


def drawn(*models: ServedModel, load: Load = LOAD, shares: tuple[float, ...] = (), seed: int = 0):  # type: ignore[no-untyped-def]
    return load.stream(seed, models, shares=shares).take_until(LOAD.seconds)


def test_models_are_drawn_by_their_shares() -> None:
    models = [request.model for request in drawn(MODEL, FAMILY, shares=(0.2, 0.8))]
    assert np.mean(models) == pytest.approx(0.8, abs=0.03)


def test_models_are_equally_likely_where_no_shares_are_given() -> None:
    assert np.mean([request.model for request in drawn(MODEL, FAMILY)]) == pytest.approx(0.5, abs=0.04)


def test_a_second_model_changes_neither_when_requests_come_nor_their_order() -> None:
    alone, both = drawn(MODEL), drawn(MODEL, FAMILY)
    assert [request.arrival_s for request in alone] == [request.arrival_s for request in both]
    assert [request.id for request in both] == list(range(len(both)))


def test_the_same_seed_draws_the_same_requests() -> None:
    assert drawn(MODEL, FAMILY, seed=3) == drawn(MODEL, FAMILY, seed=3) != drawn(MODEL, FAMILY, seed=4)


def test_examples_come_from_those_that_the_requests_own_model_is_scored_on() -> None:
    for request in drawn(FAMILY.numbered(0), MEASURED.numbered(1)):
        assert request.example in (range(1, 100, 2) if request.model == 1 else (-1,))
    examples = {request.example for request in drawn(MEASURED, FAMILY) if request.model == 0}
    assert examples == set(range(1, 100, 2)), "routers choose by the others"


def test_examples_of_another_set_are_all_drawn() -> None:
    rng_of = [Load(rate_per_s=500.0, seconds=4.0).stream(0, [MEASURED], sizes=[size]) for size in (100, 90)]
    same, other = ({one.example for one in stream.take_until(9.0)} for stream in rng_of)
    assert same == set(range(1, 100, 2)), "this is the set that the model was measured on"
    assert other == set(range(90))


def test_a_stated_plan_is_read_by_each_model() -> None:
    load = Load(rate_per_s=500.0, seconds=1.0, plan="0.5")
    plans = {(request.model, request.plan) for request in drawn(MODEL, FAMILY, load=load)}
    assert plans == {(0, MODEL.tree.index[1, 1, 1, 1]), (1, 1)}
    assert {request.plan for request in drawn(MODEL)} == {NO_PLAN}


def test_a_plan_that_a_model_has_not_is_refused() -> None:
    with pytest.raises(PlanError, match=r"model 'family' runs at 0\.25, 0\.5"):
        drawn(MODEL, FAMILY, load=Load(rate_per_s=5.0, seconds=1.0, plan="1.0"))
