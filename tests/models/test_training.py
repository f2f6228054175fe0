from pathlib import Path

import numpy as np
import pytest
import torch
from toy import SHAPE, toy_images, toy_recipe

from slimsched.core.config import ConfigError, DataError
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.training import loop
from slimsched.models.training.loop import EpochReport, average_keep, draw_tuples, learning_rate, train
from slimsched.models.training.recipe import Recipe, TrainingRecipe, read_recipe

CPU = torch.device("cpu")
DATA = toy_images()


def run(folder: Path, recipe: Recipe, **more: object) -> SlimResNet:
    trained, _ = train(recipe, DATA, folder, device=CPU, **more)  # type: ignore[arg-type]
    assert isinstance(trained.net, SlimResNet)
    return trained.net


def cut_short(folder: Path, recipe: Recipe, *, epochs: int) -> None:
    """Train for some epochs, then be interrupted."""

    def report(one: EpochReport) -> None:
        if one.epoch == epochs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, recipe, report=report)


def same(one: SlimResNet, other: SlimResNet) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", toy_recipe())
    cut_short(tmp_path / "cut", toy_recipe(), epochs=2)
    assert same(run(tmp_path / "cut", toy_recipe()), whole)


def test_every_width_learns_to_tell_colours_apart(tmp_path: Path) -> None:
    reports: list[EpochReport] = []
    recipe = toy_recipe(epochs=10, validate_every=10)
    run(tmp_path, recipe, held_out=toy_images(30, seed=1), report=reports.append)
    assert len(reports[-1].accuracy) == 8
    assert min(reports[-1].accuracy.values()) > 80


def test_half_precision_trains_on_a_cpu_too(tmp_path: Path) -> None:
    net = run(tmp_path, toy_recipe(epochs=1, precision="bf16"))
    assert all(parameter.isfinite().all() for parameter in net.parameters())


def test_a_student_learns_from_a_wider_teacher(tmp_path: Path) -> None:
    teacher = run(tmp_path / "teacher", toy_recipe(tuples="widest"))
    recipe = toy_recipe(teacher="model", teacher_share=0.7, in_place_share=0.5, temperature=2.0)
    assert not same(run(tmp_path / "taught", recipe, teacher=teacher), run(tmp_path / "alone", toy_recipe()))


def test_a_missing_or_foreign_teacher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--teacher"):
        run(tmp_path, toy_recipe(teacher="model"))
    with pytest.raises(DataError, match="teacher knows 5 classes, the data has 3"):
        run(tmp_path, toy_recipe(teacher="model"), teacher=SlimResNet(SHAPE))


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    cut_short(tmp_path, toy_recipe(), epochs=1)
    with pytest.raises(DataError, match="another recipe"):
        run(tmp_path, toy_recipe(learning_rate=0.07))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / loop.NAME).write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="does not fit this run"):
        run(tmp_path, toy_recipe())


def test_the_learning_rate_warms_up_and_ends_at_zero() -> None:
    training = TrainingRecipe(learning_rate=0.4, warmup_epochs=5)
    rates = [learning_rate(training, epoch, 100) for epoch in (0, 4.99, 5, 52.5, 100)]
    assert rates == pytest.approx([0.0008, 0.4, 0.4, 0.2, 0.0], abs=1e-3)


def test_the_average_reaches_back_a_share_of_the_run() -> None:
    training = TrainingRecipe(average_share=0.05)
    assert average_keep(training, 0, 1000) == 0.1
    assert average_keep(training, 900, 1000) == 0.98


def test_random_tuples_come_in_mirrored_pairs() -> None:
    one, mirrored = draw_tuples(TrainingRecipe(), np.random.default_rng(0))
    assert [a + b for a, b in zip(one, mirrored, strict=True)] == [1.25] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nepoch = 3", "unknown field `epoch`"),
        ("[training]\nbatch = 0", "training.batch is 0; give a whole number of at least 1"),
        ("[training]\nteacher_share = 2.0", "teacher_share is 2; give a number of at most 1"),
        ("[network]\nimage_size = 30", "multiple of 8"),
        ("not toml", "Expected|Invalid"),
    ],
)
def test_a_bad_recipe_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_recipe(path)


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("configs/train-*.toml")), ids=lambda p: p.stem
)
def test_shipped_recipes_are_readable(path: Path) -> None:
    assert read_recipe(path).training.epochs > 0
