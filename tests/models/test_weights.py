import json
import shutil
from pathlib import Path

import pytest
import torch
from toy import SHAPE

from slimsched.core.config import DataError
from slimsched.models.data.images import Colours
from slimsched.models.elastic import ModelError
from slimsched.models.loading import load
from slimsched.models.network import save
from slimsched.models.package import CARD, ModelCard
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.resnet import SlimResNet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    card = ModelCard(
        name="toy",
        shape=SHAPE,
        colours=Colours(),
        classes=("a", "b", "c", "d", "e"),
        recipe={},
        epochs=1,
        training_s=1.0,
        trained_on="nothing",
    )
    save(tmp_path, SlimResNet(SHAPE), card)
    return tmp_path


def rewrite_card(folder: Path, **changes: object) -> None:
    path = folder / CARD
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_model_comes_back_in_half_precision(folder: Path) -> None:
    weight = load(folder).net.segment(0).blocks[0].conv1.weight
    assert torch.equal(weight, weight.half().float())


def test_a_damaged_file_is_found_by_its_hash(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(DataError, match=r"is damaged: SHA-256 .* its card says"):
        load(folder)


def test_a_wrong_shape_is_named(folder: Path) -> None:
    rewrite_card(folder, shape=json.loads((folder / CARD).read_text())["shape"] | {"blocks": [1, 1, 1, 1]})
    with pytest.raises(ModelError, match=r"holds tensor 'segments\.3\.blocks\.1\..* the model does not have"):
        load(folder)


def test_a_wrong_class_count_is_named(folder: Path) -> None:
    rewrite_card(folder, classes=["a", "b"])
    with pytest.raises(DataError, match="2 class names, but the network has 5 classes"):
        load(folder)


def test_a_missing_model_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model at"):
        load(tmp_path)


def test_the_shipped_model_loads_and_knows_its_classes() -> None:
    model = load()
    assert model.card.classes[69] == "rocket"
    assert model.net(torch.zeros(1, 3, 32, 32), (0.25, 0.5, 0.75, 1.0)).shape == (1, 100)


def test_a_shipped_model_cut_short_is_found(tmp_path: Path) -> None:
    for suffix in (".json", ".safetensors"):
        shutil.copy(shipped.CARD.with_suffix(suffix), tmp_path / f"model{suffix}")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="damaged"):
        load(tmp_path)
