"""`python -m slimsched.models.training`: train with a time limit, go on, evaluate; few packages needed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import toy_images, toy_recipe, write_folder

from slimsched.models.network_choice import load
from slimsched.models.quality import read_quality
from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.slimresnet.spec import path_of, plan_tree
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.training import checkpoint
from slimsched.models.training.__main__ import main
from slimsched.models.training.loop import train
from slimsched.models.training.recipe import Recipe, TrainingRecipe, VitRecipe, override

RECIPE = """
[vit]
dim = 32
heads = 4
hidden = 64
stem = [32, 32]
image_size = 16
[training]
epochs = 4
batch = 10
optimizer = "adamw"
learning_rate = 1e-3
weight_decay = 0.05
warmup_epochs = 1
precision = "float32"
"""
ABSENT = ("typer", "rich", "pydantic", "scipy", "tensorboard", "matplotlib", "PIL", "gymnasium")
CPU = torch.device("cpu")
DATA = toy_images(40)


def vit_recipe(**training: object) -> Recipe:
    given = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05, **training}
    recipe = toy_recipe(**given)
    return Recipe(
        vit=VitRecipe(dim=32, heads=4, hidden=64, stem=(32, 32), image_size=16), training=recipe.training
    )


def run(folder: Path, recipe: Recipe, **more: object) -> tuple[dict[str, torch.Tensor], checkpoint.Progress]:
    net, progress = train(recipe, DATA, colours=DATA.colours(), folder=folder, device=CPU, **more)  # type: ignore[arg-type]
    return net.state_dict(), progress


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "photos")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def command(folder: Path, *more: str) -> list[str]:
    words = [
        "train",
        "--data",
        folder / "photos",
        "--config",
        folder / "recipe.toml",
        "--out",
        folder / "run",
    ]
    return [*map(str, words), "--device", "cpu", *more]


def test_a_transformer_that_was_stopped_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", vit_recipe())
    run(tmp_path / "cut", vit_recipe(), stop_after=2)
    resumed, _ = run(tmp_path / "cut", vit_recipe())
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_time_limit_stops_between_epochs_and_the_next_call_goes_on(tmp_path: Path) -> None:
    _, progress = run(tmp_path, vit_recipe(), limit_s=1e-3)
    assert (progress.epoch, progress.epochs) == (1, 4)
    _, progress = run(tmp_path, vit_recipe())
    assert progress.epoch == 4


def test_a_small_copy_in_parts_is_enough_to_go_on(tmp_path: Path) -> None:
    run(tmp_path / "run", vit_recipe(), stop_after=2, copy_to=tmp_path / "small")
    names = {path.stem for path in (tmp_path / "small").iterdir()}
    assert names == {"net", "average", "exp_avg", "exp_avg_sq", "step"}
    full = (tmp_path / "run" / checkpoint.NAME).stat().st_size
    assert all(path.stat().st_size < full / 6 for path in (tmp_path / "small").iterdir())
    (tmp_path / "small" / "exp_avg.safetensors").unlink()
    (tmp_path / "small" / "exp_avg_sq.safetensors").unlink()
    (tmp_path / "small" / "step.safetensors").unlink()
    _, progress = run(tmp_path / "small", vit_recipe())
    assert progress.epoch == 4


def test_a_transformer_learns_from_a_teacher_of_another_kind(tmp_path: Path) -> None:
    resnet, _ = train(toy_recipe(), DATA, colours=DATA.colours(), folder=tmp_path / "resnet", device=CPU)
    taught, _ = run(
        tmp_path / "vit", vit_recipe(teacher="model", teacher_share=0.7, label_share=0.0), teacher=resnet
    )
    assert all(tensor.isfinite().all() for tensor in taught.values())


@pytest.mark.slow
def test_every_width_of_a_transformer_learns_to_tell_colours_apart(tmp_path: Path) -> None:
    reports = []
    recipe = vit_recipe(epochs=30, validate_every=30)
    run(tmp_path, recipe, held_out=toy_images(30, seed=1), report=reports.append)
    assert min(reports[-1].accuracy.values()) > 80


def test_train_stop_resume_and_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(folder, "--limit-s", "0.001", "--copy-to", str(folder / "copy"))) == 0
    assert "stopped" in capsys.readouterr().out
    assert main(command(folder)) == 0
    assert "trained 4 of 4 epochs" in capsys.readouterr().out
    words = ["evaluate", "--data", folder / "photos", "--model", folder / "run", "--out", folder / "scored"]
    assert main([*map(str, words), "--device", "cpu"]) == 0
    table = read_quality(folder / "scored" / "model-correct.npz", plan_tree(SLIM_RESNET))
    model = load(folder / "scored")
    assert isinstance(model.net, SlimVit)
    assert table.examples == 6
    assert model.card.scored_on == "6 held-out pictures"
    assert model.card.accuracy_percent["1.0,1.0,1.0,1.0"] == round(
        100 * table.accuracy(path_of((1.0,) * 4)), 2
    )


def test_a_recipe_key_can_be_changed_on_the_command_line(folder: Path) -> None:
    changed = override(Recipe(training=TrainingRecipe()), ["training.batch=64", "vit.dim=64"])
    assert (changed.training.batch, changed.vit) == (64, VitRecipe(dim=64))
    assert main(command(folder, "--set", "training.batches=3")) == 2
    assert main(command(folder, "--set", "nonsense")) == 2


def test_few_packages_are_needed(tmp_path: Path) -> None:
    """The machine that trains may have PyTorch, NumPy, msgspec and safetensors, and nothing else of ours."""
    code = (
        "import sys\n"
        f"for name in {ABSENT!r}: sys.modules[name] = None\n"
        "import slimsched.models.training.__main__, slimsched.models.data.cifar\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_labels_can_be_smoothed(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "one", vit_recipe(epochs=1))
    other, _ = run(tmp_path / "other", vit_recipe(epochs=1, label_smoothing=0.1))
    assert not np.allclose(
        one["segments.3.pool.classifier.weight"], other["segments.3.pool.classifier.weight"]
    )


def test_training_can_begin_with_the_weights_of_another_run(tmp_path: Path) -> None:
    first, _ = train(
        vit_recipe(epochs=1), DATA, colours=DATA.colours(), folder=tmp_path / "first", device=CPU
    )
    still = vit_recipe(epochs=1, learning_rate=1e-12, narrow_share=0.5, average_share=0.0)
    weights, progress = run(tmp_path / "second", still, start=first)
    assert progress.epoch == 1
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-4, rtol=1e-3)
