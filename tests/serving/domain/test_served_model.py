"""A model in a cluster: its number, its figures, and profiles that know several models."""

import pytest

from cluster import MODEL, choice, flat_profile, path, small_cluster, toy_model
from slimsched.core.config import DataError
from slimsched.models.spec import ANY, START
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.profile import Profile, record_of
from slimsched.serving.domain.request import key_of

FREE = toy_model("free", segments=[("s", "l"), ("s", "m", "l")])
EXITS = toy_model("exits", segments=[("exit", "on"), ("a", "b")], plans=[(0,), (1, 0), (1, 1)])


def test_a_cluster_numbers_its_models_in_order_and_knows_what_each_plan_costs() -> None:
    cluster = small_cluster(models=[FREE, EXITS, MODEL])
    assert [model.number for model in cluster.models] == [0, 1, 2]
    assert [model.name for model in cluster.models] == ["free", "exits", "slimresnet"]
    for model in cluster.models:
        for plan in (model.spec.narrowest, model.spec.widest):
            legs = [cluster.work_s[leg] for leg in model.legs(plan)]
            assert cluster.plan_s(model, plan) == pytest.approx(sum(legs))
    alone = small_cluster()
    wide = path(1.0, 1.0, 1.0, 1.0)
    assert cluster.plan_s(cluster.models[2], wide) == pytest.approx(alone.plan_s(alone.models[0], wide))


def test_an_exit_costs_less_than_going_on() -> None:
    cluster = small_cluster(models=[EXITS])
    (model,) = cluster.models
    assert (cluster.plan_s(model, (0,)) < cluster.plan_s(model, (1, 0))).all()


def test_what_a_segment_hands_on_depends_on_its_choice_or_is_the_most_it_could_be() -> None:
    assert MODEL.input_bytes(1, choice(0.25), 2) == 16 * 32 * 32 * 2
    assert MODEL.input_bytes(0, START, 1) == 3072
    assert FREE.input_bytes(1, ANY, 4) == 2000 * 4
    assert FREE.input_bytes(0, ANY, 1) == 256 * 4


def test_inputs_travel_as_the_model_that_is_asked_for_says() -> None:
    cluster = small_cluster(models=[MODEL, FREE])
    assert cluster.input_bytes(key_of(0, 0, 0, START), GATEWAY) == 3072
    assert cluster.input_bytes(key_of(1, 0, 0, ANY), GATEWAY) == 1024
    assert cluster.move_s(1, 1, ANY, 0, 8)[0] == 0.0
    assert (cluster.move_s(1, 1, ANY, 0, 8)[1:] > 0.001).all()


def test_profiles_of_several_models_join_and_are_written_down_apart() -> None:
    models = [MODEL, FREE.numbered(1)]
    joined = flat_profile(models=models)
    for model in models:
        record = record_of(joined, model)
        assert record.model == model.name
        again = record.profile(model)
        assert again.latency_table_s.keys() == set(model.keys.values())
        assert again.instance_bytes.keys() == {(model.number, *place) for place in model.spec.places()}


def test_a_joined_profile_slows_down_as_a_whole() -> None:
    models = [MODEL, FREE.numbered(1)]
    slow = flat_profile(models=models, latency_s=0.01).slowed(3.0)
    for model in models:
        for one in model.keys.values():
            assert slow.latency_s(one, 4) == pytest.approx(0.03)
    assert Profile.joined(slow.parts[:1]) is slow.parts[0]


def test_a_profile_of_another_model_is_refused() -> None:
    record = record_of(flat_profile(models=[FREE]), FREE)
    with pytest.raises(DataError, match="measured for model 'free' with 5 steps; model 'exits' has 4"):
        record.profile(EXITS)


def test_models_that_were_profiled_at_different_concurrency_can_share_a_device() -> None:
    model = FREE.numbered(1)
    wide = {one: [[0.01], [0.012], [0.02]] for one in model.keys.values()}
    other = Profile(
        name="flat",
        source="made for a test",
        batches=[1],
        concurrency=[1, 2, 4],
        latency_table_s=wide,
        energy_table_j={one: [1.0] for one in wide},
        instance_bytes={one.place: 1 for one in wide},
        load_s={one.place: 0.001 for one in wide},
        idle_w=10.0,
        element_bytes=2,
    )
    joined = Profile.joined([flat_profile(latency_s=0.01), other])
    assert joined.top_concurrency == 2, "as many at once as were measured together for every model"
    for one in (*MODEL.keys.values(), *model.keys.values()):
        assert len(joined.latencies_s(one, 1)) >= joined.top_concurrency
