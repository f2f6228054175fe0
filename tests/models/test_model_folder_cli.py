"""`slim model new | check | info | evaluate` on folders."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from folders import CODE, skeleton_folder, tiny_folder
from slimsched.cli.models.model import app
from slimsched.core.config import SlimError
from slimsched.models.package import read_quality


def slim(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})


def facts(*arguments: object) -> Any:
    result = slim(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = skeleton_folder(tmp_path_factory.mktemp("models") / "mine")
    assert slim("check", folder).exit_code == 0
    return folder


def test_a_new_model_passes_the_check_as_it_is(tmp_path: Path) -> None:
    made = slim("new", tmp_path / "mine")
    assert made.exit_code == 0, made.output
    assert "next: slim model check" in made.stdout
    done = slim("check", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert "ok: 9 plans run on batches of 1 and 3, 1 compared with the whole model" in done.stdout
    assert (tmp_path / "mine" / "figures.json").exists()
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80


def test_the_docs_show_what_check_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    monkeypatch.chdir(tmp_path)
    assert slim("new", "mymodel").exit_code == 0
    printed = "\n".join(line.rstrip() for line in slim("check", "mymodel").stdout.splitlines())
    assert f"$ slim model check mymodel\n{printed}\n" in page


def test_new_leaves_what_is_there_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SlimError, match="not empty"):
        CliRunner().invoke(app, ["new", str(tmp_path)], catch_exceptions=False)


def test_check_speaks_json(sound: Path) -> None:
    found = facts("check", sound)
    assert found["ok"]
    assert found["plans"][-1] == {
        "plan": "1.0,1.0",
        "macs": 5376,
        "weights": 5508,
        "handed_over": 64,
        "handed_over_bytes": 256,
    }
    assert found["handed_over"]["0.25"] == "(N, 16) float32"


def test_check_says_what_is_wrong_and_exits_with_one(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, code=CODE.replace("* scale", "* torch.rand(())"))
    result = slim("check", folder)
    assert result.exit_code == 1
    assert "wrong" in result.stdout
    assert "figures.json was not written" in result.stdout
    assert not (folder / "figures.json").exists()
    assert json.loads(slim("check", folder, "--json").stdout)["problems"]


def test_info_tells_what_is_there_and_what_is_missing(sound: Path, tmp_path: Path) -> None:
    fresh = shutil.copytree(sound, tmp_path / "fresh")
    (fresh / "figures.json").unlink()
    found = facts("info", fresh)
    assert found["segments"] == ["0.25, 0.5, 1.0"] * 2
    assert [text.split(";")[1].split(" --")[0].strip() for text in found["missing"]] == [
        f"run slim model check {fresh} to write it",
        f"write it with slim model evaluate {fresh}",
    ]
    text = slim("info", sound).stdout
    assert "two layers that can run at three widths each" in text
    assert "5,376" in text
    assert max(map(len, text.splitlines()[:-2])) <= 80


def test_agreement_needs_no_labels_and_says_so(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIM_DATA", str(tmp_path))  # pictures, which are nothing to this model
    found = facts("evaluate", sound, "--agreement", "--examples", "40", "--device", "cpu")
    assert found["name"] == "agreement with 1.0,1.0 on 40 random inputs"
    assert found["plans"][-1]["quality"] == 1.0
    table = read_quality(sound)
    assert table.name == found["name"]
    assert table.examples == 40
    assert table.is_correct((2, 2), 39)


def test_accuracy_on_an_npz(sound: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=rng.integers(0, 4, 30))
    found = facts("evaluate", sound, "--data", tmp_path / "data.npz", "--batch", "7", "--device", "cpu")
    assert found["examples"] == 30
    assert found["name"].startswith("accuracy on")
    assert all(0 <= row["quality"] < 1 for row in found["plans"])
    assert "macs" in found["plans"][0]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": np.zeros((3, 16), np.float32)}, [], "no array 'labels'"),
        ({"labels": np.zeros(3)}, [], "no array 'x'"),
        ({"x": np.zeros((3, 5), np.float32), "labels": np.zeros(3)}, [], r"takes float32 \(N, 16\)"),
        ({"x": np.zeros((3, 16)), "labels": np.zeros(3)}, [], "is float64"),
        ({"x": np.zeros((3, 16), np.float32), "labels": np.zeros(4)}, [], "differ in their number"),
        ({"x": np.zeros((3, 16), np.float32), "labels": np.full(3, 9)}, [], "labels reach from 9 to 9"),
        ({"y": np.zeros((3, 16), np.float32)}, ["--agreement"], "no array 'x'"),
    ],
)
def test_bad_data_is_refused(
    sound: Path, tmp_path: Path, arrays: dict[str, Any], options: list[str], message: str
) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(SlimError, match=message):
        CliRunner().invoke(
            app, ["evaluate", str(sound), "--data", str(path), *options], catch_exceptions=False
        )


def test_other_data_and_no_data_are_refused(sound: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (["--data", str(tmp_path / "none.csv")], "name a folder of images"),
        (["--data", str(tmp_path)], "give an .npz file instead"),
        ([], "or add --agreement"),
    ):
        with pytest.raises(SlimError, match=message):
            CliRunner().invoke(
                app, ["evaluate", str(sound), *arguments], catch_exceptions=False, env={"SLIM_DATA": None}
            )
