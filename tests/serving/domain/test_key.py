"""Keys: what must agree for requests to share a batch, whatever the model."""

from cluster import MODEL, key, path, toy_model
from slimsched.models.spec import ANY, START
from slimsched.serving.domain.request import Key, key_of, onward


def test_the_legs_of_a_key_that_goes_on_follow_each_other() -> None:
    legs = onward(key(1, 0.5, 0.25), path(0.75, 1.0)).legs
    assert legs == (key(1, 0.5, 0.25), key(2, 0.75, 0.5), key(3, 1.0, 0.75))
    assert [leg.ahead for leg in legs] == [(), (), ()]


def test_the_first_segment_of_a_model_that_asks_follows_nothing() -> None:
    assert [leg.previous for leg in onward(key(0, 0.5), path(1.0)).legs] == [START, 1]


def test_where_the_choice_before_does_not_matter_no_leg_names_one() -> None:
    model = toy_model(segments=[("a", "b"), ("a", "b", "c"), ("a",)], number=3)
    legs = onward(key_of(3, 0, 1, ANY), (2, 0)).legs
    assert legs == (key_of(3, 0, 1, ANY), key_of(3, 1, 2, ANY), key_of(3, 2, 0, ANY))
    assert list(legs) == model.legs((1, 2, 0))


def test_paths_that_meet_again_share_a_key_only_where_the_choice_before_does_not_matter() -> None:
    free, bound = (toy_model(follows_previous=follows) for follows in (False, True))
    assert free.key_of_path((0, 1)) is free.key_of_path((1, 1))
    assert bound.key_of_path((0, 1)) != bound.key_of_path((1, 1))


def test_keys_of_two_models_are_never_equal() -> None:
    one, other = (toy_model(number=number) for number in (0, 1))
    assert not set(one.keys.values()) & set(other.keys.values())
    assert {key.place[0] for key in other.keys.values()} == {1}


def test_a_key_at_another_choice_stays_in_its_model_and_goes_no_further() -> None:
    assert Key(1, 2, 0, (1, 1), 5).at(0) == key_of(5, 1, 0, 0)


def test_a_model_has_a_key_for_every_step_of_its_plans_and_none_besides() -> None:
    exits = toy_model(segments=[("exit", "on"), ("a", "b", "c")], plans=[(0,), (1, 0), (1, 2)])
    assert list(exits.keys) == [(0, 0, ANY), (0, 1, ANY), (1, 0, ANY), (1, 2, ANY)]
    assert len(MODEL.keys) == 4 + 3 * 16


def test_keys_are_written_with_the_names_of_their_choices() -> None:
    assert MODEL.key_text(onward(key(1, 0.5, 0.25), path(0.75))) == "segment 1 at 0.5 after 0.25, then 0.75"
    assert toy_model().key_text(key_of(0, 0, 1, ANY)) == "segment 0 at large"
    assert str(key_of(2, 1, 0, ANY)) == "model 2, segment 1 at choice 0"
