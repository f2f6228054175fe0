import json
import os
import runpy
import sys
from pathlib import Path

import pytest
from toy import write_folder
from typer.testing import CliRunner

from slimsched.cli.app import app, main

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
    result = CliRunner().invoke(app, ["model", "train", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return root


def test_training_on_a_folder_leaves_a_model_a_checkpoint_and_scalars(trained: Path) -> None:
    names = {path.name for path in (trained / "run").iterdir()}
    assert {"model.safetensors", "model.json", "checkpoint.safetensors", "epochs.jsonl"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    lines = [json.loads(line) for line in (trained / "run" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert len(lines[-1]["accuracy"]) == 8


def test_the_trained_model_evaluates_on_its_own_folder(trained: Path) -> None:
    arguments = ["--data", trained / "photos", "--model", trained / "run", "--json"]
    result = CliRunner().invoke(app, ["model", "evaluate", *map(str, arguments)])
    found = json.loads(result.stdout)
    assert list(found["uniform"]) == ["0.25", "0.5", "0.75", "1.0"]
    assert list(found["mixed"]) == [
        "1.0,0.75,0.5,0.25",
        "0.75,1.0,0.25,0.5",
        "0.5,0.25,1.0,0.75",
        "0.25,0.5,0.75,1.0",
    ]


def test_chosen_widths_only(trained: Path) -> None:
    arguments = ["--data", trained / "photos", "--model", trained / "run", "--widths", "0.5", "--json"]
    found = json.loads(CliRunner().invoke(app, ["model", "evaluate", *map(str, arguments)]).stdout)
    assert list(found["uniform"]) == ["0.5"]
    assert found["mixed"] == {}


def test_pareto_and_info_speak_json() -> None:
    points = json.loads(CliRunner().invoke(app, ["model", "pareto", "--json"]).stdout)
    assert points[0]["plan"] == "0.25,0.25,0.25,0.25"
    facts = json.loads(CliRunner().invoke(app, ["model", "info", "--json"]).stdout)
    assert facts["macs"]["1.0"] / facts["macs"]["0.25"] == pytest.approx(16, rel=0.02)


def test_models_compete_by_arithmetic_time_and_energy() -> None:
    asked = ["model", "pareto", "slimresnet", "slimvit", "--device", "h200-50", "--json"]
    fronts = json.loads(CliRunner().invoke(app, asked).stdout)
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
        (["model", "evaluate", "--data", "/nowhere"], "there is no folder /nowhere"),
        (["model", "evaluate", "--data", "{photos}", "--model", "/nowhere"], "no model at"),
        (["model", "train", "--data", "{photos}", "--config", "/nowhere.toml"], "cannot read recipe"),
        (["model", "evaluate", "--data", "{photos}", "--bits", "x.npz"], "add --widths all"),
        (["model", "info", "--model", "{photos}"], "no model at"),
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
@pytest.mark.slow
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with CIFAR-100")
def test_checking_the_data_counts_its_images() -> None:
    result = CliRunner().invoke(app, ["data", "check", "--json"])
    assert json.loads(result.stdout) == {
        "kind": "CIFAR-100",
        "train_images": 50_000,
        "test_images": 10_000,
        "classes": 100,
    }
