"""A user's folder of pictures: some are held out, every width learns, and the output says what was scored."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import KINDS, write_pictures
from toy import toy_images, toy_recipe, write_folder

from command_line import slim
from slimsched.core.config import DataError
from slimsched.models.data import dataset
from slimsched.models.data.dataset import open_images, scored_images
from slimsched.models.loading import load
from slimsched.models.package import ModelCard
from slimsched.models.slimresnet.shape import UNIFORM
from slimsched.models.training.loop import chance_warning, run_training
from slimsched.models.training.recipe import Recipe, read_recipe
from slimsched.models.width import format_widths

CPU = torch.device("cpu")
RECIPE = Path(__file__).parents[2] / "configs" / "train-folder.toml"


def run(root: Path, recipe: Recipe | None = None) -> ModelCard:
    card, _ = run_training(recipe or toy_recipe(epochs=1), root / "photos", root / "run", device=CPU)
    return card


@pytest.mark.slow
def test_three_hundred_pictures_are_enough_at_every_width(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos")
    card = run(tmp_path, read_recipe(RECIPE))
    assert card.scored_on == "60 held-out pictures"
    assert card.trained_on.startswith("240 images")
    assert min(card.accuracy_percent[format_widths(widths)] for widths in UNIFORM) >= 90


def test_a_fifth_of_every_class_is_held_out(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", count=10)
    images = open_images(tmp_path / "photos", "train")
    train, scored = dataset.hold_out(images, 0.2, seed=0, run=tmp_path / "run")
    assert np.bincount(train.labels).tolist() == [8] * len(KINDS)
    assert np.bincount(scored.labels).tolist() == [2] * len(KINDS)
    assert not set(train.names) & set(scored.names)


def test_the_same_seed_holds_out_the_same_pictures() -> None:
    data = toy_images(60)
    _, one = data.split(0.2, seed=1)
    _, again = data.split(12, seed=1)
    _, other = data.split(0.2, seed=2)
    assert np.array_equal(one.images, again.images)
    assert not np.array_equal(one.images, other.images)


def test_pictures_added_later_do_not_change_what_is_held_out(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos")
    run(tmp_path)
    names = dataset.read_names(tmp_path / "run")
    for index in range(20):
        shutil.copy(photos / "red" / "0.png", photos / "red" / f"new-{index}.png")
    scored = scored_images(photos, side=16, classes=("blue", "green", "red"), run=tmp_path / "run")
    assert set(scored.images.names) == names
    train, again = dataset.hold_out(open_images(photos, "train"), 0.2, seed=9, run=tmp_path / "run")
    assert set(again.names) == names
    assert not set(train.names) & names


def test_the_card_says_what_was_scored(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos")
    run(tmp_path)
    card = load(tmp_path / "run").card
    assert card.scored_on == "6 held-out pictures"
    assert len(card.accuracy_percent) == 8


def test_without_held_out_pictures_the_card_says_training_images(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos")
    card = run(tmp_path, toy_recipe(epochs=1, held_out=0))
    assert card.scored_on.startswith("36 training images")


def test_a_folder_with_test_images_of_its_own_holds_nothing_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos" / "train")
    write_folder(tmp_path / "photos" / "test", count=3)
    card = run(tmp_path)
    assert card.trained_on.startswith("36 images")
    assert card.scored_on == "9 test images"


def test_evaluation_scores_held_out_pictures_only_unless_told_otherwise(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos")
    run(tmp_path)
    arguments = ["model", "evaluate", tmp_path / "run", "--data", tmp_path / "photos", "--json"]

    def scored_on(*more: str) -> str:
        result = slim(*map(str, arguments), *more)
        return str(json.loads(result.out)["name"])

    assert scored_on() == "accuracy on 6 held-out pictures"
    assert scored_on("--all") == "accuracy on 36 pictures, held-out and training images together"


def test_other_pictures_than_the_held_out_ones_must_be_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos")
    run(tmp_path)
    (tmp_path / "others" / "red").mkdir(parents=True)
    shutil.copy(tmp_path / "photos" / "red" / "0.png", tmp_path / "others" / "red" / "fresh.png")
    with pytest.raises(DataError, match="none of the 6 pictures held out"):
        scored_images(tmp_path / "others", side=16, classes=("blue", "green", "red"), run=tmp_path / "run")


def test_checking_a_folder_counts_no_picture_twice(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos")
    result = slim("data", "check", "--data", str(tmp_path / "photos"), "--json")
    assert json.loads(result.out) == {
        "kind": "class folders",
        "train_images": 36,
        "test_images": 0,
        "classes": 3,
    }


def test_a_network_that_learned_nothing_gives_a_warning(tmp_path: Path) -> None:
    write_pictures(tmp_path / "photos", count=20)
    (warning,) = run(tmp_path, toy_recipe(epochs=1, learning_rate=1e-6)).notes
    assert warning.startswith("WARNING: no better than guessing at width 0.25")


def test_chance_level_depends_on_the_classes_and_on_luck() -> None:
    labels = np.arange(60) % 5
    assert chance_warning({0.25: 90.0, 1.0: 95.0}, labels) is None
    warning = chance_warning({0.25: 21.0, 1.0: 95.0}, labels)
    assert warning is not None
    assert "width 0.25 (21.0 %): guessing can reach 35.5 %" in warning


def test_classes_with_a_single_picture_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match="no class has two"):
        toy_images(3).split(0.2, seed=0)
