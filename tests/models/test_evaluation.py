import os
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import SHAPE, toy_images

from slimsched.core.config import DataError, WidthError
from slimsched.models.data import cifar
from slimsched.models.data.images import Colours
from slimsched.models.evaluate import Evaluator
from slimsched.models.quality import read_quality, write_quality
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.elastic import load
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import PAPER_PERCENT, SLIM_RESNET, UNIFORM, path_of, plan_tree
from slimsched.models.training.recipe import normalize
from slimsched.models.width import WIDTH_TUPLES

NET = SlimResNet(SHAPE).requires_grad_(False)
TREE = plan_tree(SLIM_RESNET)


def test_sharing_segments_changes_no_result() -> None:
    images = toy_images(4).images
    tuples = [WIDTH_TUPLES[i] for i in (0, 1, 5, 77, 255)]
    together = Evaluator(NET, Colours()).logits(images, tuples)
    pixels = normalize(torch.from_numpy(images).float() / 255, Colours())
    for widths in tuples:
        assert torch.allclose(together[widths], NET(pixels, widths), atol=1e-5)


def test_data_of_another_class_count_is_refused() -> None:
    with pytest.raises(DataError, match="the data has 3 classes, the network 5"):
        Evaluator(NET, Colours()).correct(toy_images(4), UNIFORM)
    with pytest.raises(WidthError, match=r"width 0\.3"):
        Evaluator(NET, Colours()).logits(toy_images(4).images, [(0.3,) * 4])


def test_correctness_bits_survive_writing_and_reading(tmp_path: Path) -> None:
    correct = np.random.default_rng(0).random((256, 37)) < 0.7
    write_quality(tmp_path / "bits.npz", correct)
    table = read_quality(tmp_path / "bits.npz", TREE)
    plan = path_of(WIDTH_TUPLES[9])
    assert [table.is_correct(plan, i) for i in range(37)] == correct[9].tolist()
    assert table.accuracy(plan) == pytest.approx(correct[9].mean())


def test_a_damaged_correctness_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bits.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no quality table"):
        read_quality(tmp_path / "bits.npz", TREE)


def test_the_shipped_bits_beat_the_paper_at_every_tuple_of_its_tables() -> None:
    table, card = read_quality(shipped.quality_path(), TREE), load().card
    assert table.examples == 10_000
    for widths, paper_percent in PAPER_PERCENT.items():
        measured = round(100 * table.accuracy(path_of(widths)), 2)
        assert measured > paper_percent
        assert card.accuracy_percent[",".join(map(str, widths))] == measured


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with CIFAR-100")
def test_the_cpu_recomputes_the_shipped_bits_on_a_thousand_images() -> None:
    """At most 2 of 1,000 images a width may differ, near-ties that rounding tips (none did when shipped)."""
    folder = cifar.find(Path(os.environ["SLIM_DATA"]))
    if folder is None or not (folder / cifar.SAMPLE).is_file():
        pytest.skip(f"SLIM_DATA holds no {cifar.SAMPLE}")
    sample, test = cifar.read_part(folder / cifar.SAMPLE), cifar.read(folder, "test")
    first_ten = np.sort(np.concatenate([np.flatnonzero(test.labels == label)[:10] for label in range(100)]))
    assert np.array_equal(test.images[first_ten], sample.images)
    model, table = load(), read_quality(shipped.quality_path(), TREE)
    correct = Evaluator(model.net, model.card.colours).correct(sample, UNIFORM, batch=100)
    for widths, row in zip(UNIFORM, correct, strict=True):
        kept = np.array([table.is_correct(path_of(widths), int(index)) for index in first_ten])
        assert (row != kept).sum() <= 2
