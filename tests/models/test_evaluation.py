import os
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import SHAPE, read_part, toy_images

from cluster import path
from slimsched.core.config import DataError
from slimsched.models.data import cifar
from slimsched.models.elastic import PlanRun
from slimsched.models.evaluate import image_inputs, measure
from slimsched.models.loading import load, trained_model
from slimsched.models.package import network_spec
from slimsched.models.quality import read_quality, write_quality
from slimsched.models.shipped import default_spec
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.shape import PAPER_PERCENT, UNIFORM
from slimsched.models.spec import PlanError, PlanTree
from slimsched.models.training.recipe import normalize
from slimsched.models.width import WIDTH_TUPLES

SAMPLE = "sample-test1000.xz"
PLANS = [path(*widths) for widths in UNIFORM]
TREE = PlanTree(default_spec().plans)


def test_sharing_segments_changes_no_result() -> None:
    images = toy_images(4, side=32).images
    tuples = [WIDTH_TUPLES[i] for i in (0, 1, 5, 77, 255)]
    run, trained = PlanRun(trained_model(precision=torch.float32)), load()
    together = dict(run.outputs((torch.from_numpy(images),), [path(*widths) for widths in tuples]))
    pixels = normalize(torch.from_numpy(images).float() / 255, trained.card.colours)
    for widths in tuples:
        assert torch.allclose(together[path(*widths)][0], trained.net(pixels, widths), atol=1e-3)


def test_data_of_another_class_count_is_refused() -> None:
    with pytest.raises(DataError, match="the data has 3 classes, the network 5"):
        image_inputs(toy_images(4), 5)
    with pytest.raises(PlanError, match=r"'0\.3' is not available"):
        network_spec(SHAPE).path("0.3")


def test_correctness_bits_survive_writing_and_reading(tmp_path: Path) -> None:
    correct = np.random.default_rng(0).random((256, 37)) < 0.7
    write_quality(tmp_path / "bits.npz", correct)
    table = read_quality(tmp_path / "bits.npz", TREE)
    plan = path(*WIDTH_TUPLES[9])
    assert [table.is_correct(plan, i) for i in range(37)] == correct[9].tolist()
    assert table.accuracy(plan) == pytest.approx(correct[9].mean())


def test_a_damaged_correctness_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bits.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no quality table"):
        read_quality(tmp_path / "bits.npz", TREE)


def test_the_shipped_bits_beat_the_paper_at_every_tuple_of_its_tables() -> None:
    table, card = read_quality(shipped.QUALITY, TREE), load().card
    assert table.examples == 10_000
    for widths, paper_percent in PAPER_PERCENT.items():
        measured = round(100 * table.accuracy(path(*widths)), 2)
        assert measured > paper_percent
        assert card.accuracy_percent[",".join(map(str, widths))] == measured


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with CIFAR-100")
def test_the_cpu_recomputes_the_shipped_bits_on_a_thousand_images() -> None:
    """At most 2 of 1,000 images a width may differ, near-ties that rounding tips (none did when shipped)."""
    folder = cifar.find(Path(os.environ["SLIM_DATA"]))
    if folder is None or not (folder / SAMPLE).is_file():
        pytest.skip(f"SLIM_DATA holds no {SAMPLE}")
    sample, test = read_part(folder / SAMPLE), cifar.read(folder, "test")
    first_ten = np.sort(np.concatenate([np.flatnonzero(test.labels == label)[:10] for label in range(100)]))
    assert np.array_equal(test.images[first_ten], sample.images)
    model, table = trained_model(precision=torch.float32), read_quality(shipped.QUALITY, TREE)
    correct = measure(model, image_inputs(sample, 100), plans=PLANS, batch=100).correct
    for widths, row in zip(UNIFORM, correct, strict=True):
        kept = np.array([table.is_correct(path(*widths), int(index)) for index in first_ten])
        assert (row != kept).sum() <= 2
