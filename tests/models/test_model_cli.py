import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from toy import write_folder

from command_line import slim
from slimsched.cli.app import main
from slimsched.models.package import read_quality

RECIPE = """
[network]
channels = [32, 32, 32, 32]
blocks = [1, 1, 1, 1]
image_size = 16
[training]
epochs = 3
batch = 12
warmup_epochs = 1
precision = "float32"
held_out = 6
validate_every = 1
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs and the model trained on it."""
    root = tmp_path_factory.mktemp("user")
    write_folder(root / "photos")
    (root / "recipe.toml").write_text(RECIPE)
    arguments = [
        "--data",
        root / "photos",
        "--config",
        root / "recipe.toml",
        "--out",
        root / "run",
        "--device",
        "cpu",
    ]
    result = slim("model", "train", *map(str, arguments))
    assert result.code == 0, result
    return root


def test_training_on_a_folder_leaves_a_model_a_checkpoint_and_scalars(trained: Path) -> None:
    names = {path.name for path in (trained / "run").iterdir()}
    assert {"model.safetensors", "model.json", "checkpoint.pt", "epochs.jsonl"} <= names
    lines = [json.loads(line) for line in (trained / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert len(lines[-1]["accuracy"]) == 8


def test_the_trained_model_evaluates_on_its_own_folder(trained: Path) -> None:
    arguments = [trained / "run", "--data", trained / "photos", "--json"]
    result = slim("model", "evaluate", *map(str, arguments))
    found = json.loads(result.out)
    assert found["name"] == "accuracy on 6 held-out pictures"
    assert len(found["plans"]) == 256
    by_plan = {row["plan"]: row["quality"] for row in found["plans"]}
    card = json.loads((trained / "run" / "model.json").read_text())
    assert {plan: round(100 * by_plan[plan], 2) for plan in card["accuracy_percent"]} == card[
        "accuracy_percent"
    ]
    assert read_quality(trained / "run").examples == 6


def test_the_facts_of_a_trained_model_say_how_it_was_trained(trained: Path) -> None:
    result = slim("model", "info", str(trained / "run"), "--json")
    facts = json.loads(result.out)
    assert facts["epochs"] == 3
    assert facts["scored_on"] == "6 held-out pictures"
    assert facts["channels"] == [32, 32, 32, 32]


def test_chosen_widths_only(trained: Path) -> None:
    arguments = [trained / "run", "--data", trained / "photos", "--widths", "0.5", "--json"]
    found = json.loads(slim("model", "evaluate", *map(str, arguments)).out)
    assert [row["plan"] for row in found["plans"]] == ["0.5,0.5,0.5,0.5"]


def test_pareto_and_info_speak_json() -> None:
    points = json.loads(slim("model", "pareto", "--json").out)
    assert points[0]["plan"] == "0.25,0.25,0.25,0.25"
    facts = json.loads(slim("model", "info", "--json").out)
    assert facts["plans"][-1]["macs"] / facts["plans"][0]["macs"] == pytest.approx(16, rel=0.02)
    assert facts["accuracy_percent"]["1.0,1.0,1.0,1.0"] == 81.67


def test_models_compete_by_arithmetic_time_and_energy() -> None:
    asked = ["model", "pareto", "slimresnet", "slimvit", "--device", "h200-50", "--json"]
    fronts = json.loads(slim(*asked).out)
    assert list(fronts) == [
        "million multiply-accumulates per example",
        "µs of h200-50 per example",
        "mJ above idle per example, h200-50",
    ]
    for points in fronts.values():
        costs = [point["cost"] for point in points]
        assert costs == sorted(costs)
        assert points[-1]["accuracy_percent"] == 81.67  # SlimResNet's widest plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "evaluate", "--data", "{photos}", "--widths", "0.6"], "'0.6' is not available"),
        (["model", "evaluate", "--data", "{photos}", "--widths", "wide"], "'wide' is not available"),
        (["model", "evaluate", "--data", "{photos}"], "which the network was not trained on"),
        (["model", "evaluate", "--data", "/nowhere"], "no data at /nowhere"),
        (["model", "evaluate", "/nowhere", "--data", "{photos}"], "no model '/nowhere'"),
        (["model", "train", "--data", "{photos}", "--config", "/nowhere.toml"], "cannot read recipe"),
        (["model", "evaluate"], "or add --agreement"),
        (["model", "info", "{photos}"], "no model in"),
    ],
)
def test_bad_input_gives_one_clear_line(
    trained: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    filled = [argument.replace("{photos}", str(trained / "photos")) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["slim", *filled])
    monkeypatch.delenv("SLIM_DATA", raising=False)
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_the_example_finds_the_rocket_and_the_cup(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "classify_image.py"
    runpy.run_path(str(example))["main"]([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all("rocket" in line for line in lines[1:5])
    assert all("cup" in line for line in lines[6:10])


@pytest.mark.data
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with CIFAR-100")
@pytest.mark.slow
def test_checking_the_data_counts_its_images() -> None:
    result = slim("data", "check", "--json")
    assert json.loads(result.out) == {
        "kind": "CIFAR-100",
        "train_images": 50_000,
        "test_images": 10_000,
        "classes": 100,
    }
