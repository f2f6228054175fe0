"""A SlimResNet as an elastic model gives what the network gives, at all widths."""

from pathlib import Path

import numpy as np
import pytest
import torch
from toy import SHAPE, run_plan, toy_images

from cluster import widths_of
from slimsched.models.check import check_model
from slimsched.models.data.images import Colours
from slimsched.models.elastic import PlanRun
from slimsched.models.loading import load_model, trained_model
from slimsched.models.network import Trained, save
from slimsched.models.package import ModelCard, read_figures, read_spec
from slimsched.models.slimresnet.elastic import FoldedSegment, SlimResNetModel, cpu_precision, pack
from slimsched.models.slimresnet.resnet import SlimResNet

CLASSES = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def trained() -> Trained:
    torch.manual_seed(0)
    net = SlimResNet(SHAPE)
    for name, weight in net.named_parameters():
        if name.endswith("affine"):
            torch.nn.init.normal_(weight, 1.0, 0.2)
    card = ModelCard(
        name="toy",
        shape=SHAPE,
        colours=Colours(),
        classes=CLASSES,
        recipe={},
        epochs=1,
        training_s=1.0,
        trained_on="nothing",
    )
    return Trained(net=net.requires_grad_(False).eval(), card=card)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(toy_images(4).images)


def test_every_width_gives_what_the_network_gives(trained: Trained, images: torch.Tensor) -> None:
    model = SlimResNetModel(trained, precision=torch.float32)
    mean, std = (torch.tensor(one).view(1, 3, 1, 1) for one in (Colours().mean, Colours().std))
    normal = (images / 255 - mean) / std
    with torch.inference_mode():
        for plan, (logits,) in PlanRun(model).outputs((images,), model.spec.plans):
            assert torch.allclose(logits, trained.net(normal, widths_of(plan)), atol=2e-4), plan


def test_segments_are_those_that_the_cpu_executor_folds(trained: Trained, images: torch.Tensor) -> None:
    model, precision = SlimResNetModel(trained), cpu_precision()
    with torch.inference_mode():
        (prepared,) = model.prepare((images,))
        assert prepared.dtype == precision
        for plan in ((0, 0, 0, 0), (3, 1, 2, 0), (0, 1, 2, 3), (3, 3, 3, 3)):
            x, widths = prepared, widths_of(plan)
            for segment, width in enumerate(widths):
                previous = widths[segment - 1] if segment else None
                x = pack(trained.net.instance(segment, width=width, previous=previous), precision)(x)
            (logits,) = run_plan(model, plan, (images,))
            assert logits.dtype == torch.float32
            assert torch.equal(logits, x.float())


def test_segments_after_different_widths_share_their_later_layers(trained: Trained) -> None:
    model = SlimResNetModel(trained)
    one, other = (model.segment(3, "1.0", previous) for previous in ("0.25", "1.0"))
    assert isinstance(one, FoldedSegment)
    assert isinstance(other, FoldedSegment)
    assert one.instance.layers[1] is other.instance.layers[1]
    assert one.instance.layers[0] is not other.instance.layers[0]


def test_a_trained_folder_is_a_model_folder(trained: Trained, tmp_path: Path) -> None:
    save(tmp_path, trained.net, trained.card)
    spec = read_spec(tmp_path)
    assert (spec.name, spec.labels, len(spec.plans)) == ("toy", CLASSES, 256)
    model = load_model(tmp_path)
    assert model.spec == spec
    assert read_figures(tmp_path).steps[0, 3, -1].macs == SHAPE.macs(0, None, 1.0)
    report = check_model(trained_model(tmp_path, precision=torch.float32))
    assert report.problems == []
    assert report.compared == 64


def test_the_shipped_network_sees_the_rocket() -> None:
    from PIL import Image

    from slimsched.models.data.image_folder import square

    model = trained_model()
    rocket = Path(__file__).parents[2] / "examples" / "rocket.jpg"
    pixels = torch.from_numpy(np.array(square(Image.open(rocket), 32)))[None]
    for plan in ((0, 0, 0, 0), (3, 3, 3, 3)):
        (logits,) = run_plan(model, plan, (pixels,))
        assert model.spec.labels[int(logits.argmax())] == "rocket"
