import pytest
from hypothesis import given
from model_specs import TENSOR, model_specs, spec_of

from cluster import MODEL
from slimsched.core.config import ConfigError
from slimsched.models.spec import (
    ANY,
    MOST_PLANS,
    START,
    ModelSpec,
    PlanError,
    TensorSpec,
    every_plan,
    uniform_plans,
)

FAMILY = spec_of((("small", "base", "large"),), ((0,), (1,), (2,)))
EXITS = spec_of((("exit", "on"), ("exit", "on"), ("a", "b")), ((0,), (1, 0), (1, 1, 0), (1, 1, 1)))


@given(model_specs())
def test_a_plan_in_words_is_read_back_as_it_was(spec: ModelSpec) -> None:
    assert [spec.path(spec.text(plan)) for plan in spec.plans] == list(spec.plans)


@given(model_specs())
def test_every_segment_of_every_plan_is_a_step_and_steps_come_in_order(spec: ModelSpec) -> None:
    steps = spec.steps()
    for plan in spec.plans:
        for length in range(1, len(plan) + 1):
            assert spec.step(plan[:length]) in steps
            assert spec.step(plan[:length])[2] == spec.previous(plan[: length - 1])
    assert steps == sorted(set(steps), key=lambda step: (step[0], step[2], step[1]))
    assert spec.places() == sorted({(segment, choice) for segment, choice, _ in steps})


@given(model_specs())
def test_the_widest_plan_takes_the_last_choice_wherever_it_can_and_the_narrowest_the_first(
    spec: ModelSpec,
) -> None:
    for plan, most in ((spec.widest, max), (spec.narrowest, min)):
        for length in range(len(plan)):
            alike = [other for other in spec.plans if other[:length] == plan[:length]]
            assert plan[length] == most(other[length] for other in alike)


@given(model_specs())
def test_a_choice_ends_all_plans_that_take_it_or_none(spec: ModelSpec) -> None:
    for plan in spec.plans:
        ended = [spec.ends(segment, choice) for segment, choice in enumerate(plan)]
        assert ended == [False] * (len(plan) - 1) + [True]


def test_the_first_segment_follows_nothing_and_a_model_that_does_not_ask_follows_any() -> None:
    plans = ((0, 1), (1, 1))
    asks, does_not = (spec_of((("a", "b"), ("a", "b")), plans, follows_previous=yes) for yes in (True, False))
    assert [asks.previous(path) for path in ((), (1,))] == [START, 1]
    assert [does_not.previous(path) for path in ((), (1,))] == [ANY, ANY]
    assert asks.steps() == [(0, 0, START), (0, 1, START), (1, 1, 0), (1, 1, 1)]
    assert does_not.steps() == [(0, 0, ANY), (0, 1, ANY), (1, 1, ANY)]


def test_one_name_means_every_segment_and_a_number_may_be_written_shorter() -> None:
    spec = MODEL.spec
    assert spec.path("0.5") == (1, 1, 1, 1)
    assert spec.path("0.25, 0.5, 0.75, 1") == (0, 1, 2, 3)
    assert spec.path("1") == spec.path("1.0") == spec.widest
    assert FAMILY.path("base") == (1,)
    assert EXITS.path("exit") == (0,)
    assert EXITS.path("on,on,b") == (1, 1, 1)


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        (MODEL.spec, "0.6", "'0.6' is not available: model 'slimresnet' runs at 0.25, 0.5, 0.75, 1.0"),
        (MODEL.spec, "0.5,0.5", "it has 4 segments and 256 plans, such as 1.0,1.0,1.0,1.0"),
        (
            MODEL.spec,
            "0.5,0.5,0.5,0.6",
            "'0.6' is not a choice of segment 3 of model 'slimresnet'; it has 0.25",
        ),
        (MODEL.spec, "1,1,1,1,1", "is not a plan of model 'slimresnet'"),
        (FAMILY, "huge", "runs at small, base, large; ask for one of these"),
        (EXITS, "on", "'on' is not available"),
        (EXITS, "exit,on", "'exit,on' is not a plan of model 'drawn': it has 3 segments and 4 plans"),
        (EXITS, "", "'' is not available"),
    ],
)
def test_a_plan_that_is_none_says_what_to_ask_for(spec: ModelSpec, text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        spec.path(text)


TWO = (("a", "b"), ("a", "b"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "give the model a name without '/'"),
        ({"name": "a/b"}, "model 'a/b': give the model a name without '/'"),
        ({"inputs": ()}, "name at least one input and one output tensor"),
        ({"outputs": ()}, "name at least one input and one output tensor"),
        ({"segments": ()}, "has 0 segments; it may have 1 to 8"),
        ({"segments": (("a",),) * 9}, "has 9 segments; it may have 1 to 8"),
        ({"segments": (("a", "a"),)}, r"segment 0: choices \['a', 'a'\] must be different names"),
        ({"segments": (("a",), ())}, r"segment 1: choices \[\] must be different names"),
        (
            {"segments": (("a,b",),)},
            "segment 0: a choice's name must not be empty, hold a comma or begin or end with a space",
        ),
        ({"segments": (("",),)}, "segment 0: a choice's name must not be empty"),
        ({"plans": ()}, "has 0 plans; write out 1 to 1024 of them"),
        ({"plans": ((),)}, r"plan \[\] must name 1 to 2 choices"),
        ({"plans": ((0, 0, 0),)}, r"plan \[0, 0, 0\] must name 1 to 2 choices"),
        ({"plans": ((0, 2),)}, r"plan \[0, 2\]: segment 1 has no choice 2"),
        ({"plans": ((0, -1),)}, r"plan \[0, -1\]: segment 1 has no choice -1"),
        ({"plans": ((0, 1), (0, 1))}, r"plan \[0, 1\] stands there twice"),
        ({"plans": ((0,), (0, 1))}, "let plans that end early end with a choice of their own"),
    ],
)
def test_a_model_that_no_scheduler_could_work_with_is_refused(changes: dict[str, object], says: str) -> None:
    values: dict[str, object] = {"segments": TWO, "plans": ((0, 0), (1, 1)), **changes}
    with pytest.raises(ConfigError, match=says):
        spec_of(**values)  # type: ignore[arg-type]


def test_a_model_with_more_plans_than_can_be_planned_for_is_refused() -> None:
    segments = (("a", "b", "c", "d"),) * 6
    assert len(every_plan(segments)) > MOST_PLANS
    with pytest.raises(ConfigError, match="has 4096 plans; write out 1 to 1024 of them"):
        spec_of(segments, every_plan(segments))


def test_a_tensor_needs_all_its_sizes() -> None:
    assert TENSOR.row_bytes == 16
    with pytest.raises(ConfigError, match=r"tensor 'x' has shape \[-1, 4\]: give every size, 1 or more"):
        TensorSpec(name="x", datatype="FP32", shape=(-1, 4))


def test_every_combination_and_the_uniform_ones() -> None:
    uneven = (("a", "b"), ("a", "b", "c"))
    assert every_plan(uneven) == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert uniform_plans(uneven) == ((0, 0), (1, 1))
