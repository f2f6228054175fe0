"""Training of a transformer: it stops in time, goes on, learns from a teacher and from smoothed labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from toy import toy_images, toy_recipe

from slimsched.models.slimvit.shape import VitRecipe
from slimsched.models.training import loop
from slimsched.models.training.loop import train
from slimsched.models.training.recipe import Recipe

CPU = torch.device("cpu")
DATA = toy_images(40)


def vit_recipe(**training: object) -> Recipe:
    given = {"optimizer": "adamw", "learning_rate": 1e-3, "weight_decay": 0.05, **training}
    recipe = toy_recipe(**given)
    return Recipe(
        vit=VitRecipe(dim=32, heads=4, hidden=64, stem=(32, 32), image_size=16), training=recipe.training
    )


def run(folder: Path, recipe: Recipe, **more: object) -> tuple[dict[str, torch.Tensor], loop.EpochProgress]:
    trained, progress = train(recipe, DATA, folder, device=CPU, **more)  # type: ignore[arg-type]
    return trained.net.state_dict(), progress


def test_a_transformer_that_was_stopped_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    def report(one: loop.EpochReport) -> None:
        if one.epoch == 2:
            raise KeyboardInterrupt

    whole, _ = run(tmp_path / "whole", vit_recipe())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", vit_recipe(), report=report)
    resumed, _ = run(tmp_path / "cut", vit_recipe())
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_time_limit_stops_between_epochs_and_the_next_call_goes_on(tmp_path: Path) -> None:
    _, progress = run(tmp_path, vit_recipe(), limit_s=1e-3)
    assert (progress.epoch, progress.epochs) == (1, 4)
    _, progress = run(tmp_path, vit_recipe())
    assert progress.epoch == 4


def test_a_transformer_learns_from_a_teacher_of_another_kind(tmp_path: Path) -> None:
    resnet, _ = train(toy_recipe(), DATA, tmp_path / "resnet", device=CPU)
    taught, _ = run(
        tmp_path / "vit", vit_recipe(teacher="model", teacher_share=0.7, label_share=0.0), teacher=resnet.net
    )
    assert all(tensor.isfinite().all() for tensor in taught.values())


@pytest.mark.slow
def test_every_width_of_a_transformer_learns_to_tell_colours_apart(tmp_path: Path) -> None:
    reports = []
    recipe = vit_recipe(epochs=30, validate_every=30)
    run(tmp_path, recipe, held_out=toy_images(30, seed=1), report=reports.append)
    assert min(reports[-1].accuracy.values()) > 80


def test_labels_can_be_smoothed(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "one", vit_recipe(epochs=1))
    other, _ = run(tmp_path / "other", vit_recipe(epochs=1, label_smoothing=0.1))
    assert not np.allclose(
        one["segments.3.pool.classifier.weight"], other["segments.3.pool.classifier.weight"]
    )


def test_training_can_begin_with_the_weights_of_another_run(tmp_path: Path) -> None:
    first, _ = train(vit_recipe(epochs=1), DATA, tmp_path / "first", device=CPU)
    still = vit_recipe(epochs=1, learning_rate=1e-12, narrow_share=0.5, average_share=0.0)
    weights, progress = run(tmp_path / "second", still, start=first.net)
    assert progress.epoch == 1
    for name, tensor in first.net.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, atol=1e-4, rtol=1e-3)
