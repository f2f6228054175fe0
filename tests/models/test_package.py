"""Model folders: what is read, what is refused, and in which words."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toy import run_plan

from folders import CODE, SEGMENTS, skeleton_folder, tiny_folder
from slimsched.core.config import ConfigError, DataError
from slimsched.models.check import check_model
from slimsched.models.elastic import ModelError
from slimsched.models.loading import load_model
from slimsched.models.package import (
    figures_json,
    network_spec,
    profile_paths,
    read_figures,
    read_quality,
    read_spec,
)
from slimsched.models.quality import write_quality
from slimsched.models.slimresnet.shape import SLIM_RESNET


def test_a_description_becomes_a_spec(tmp_path: Path) -> None:
    spec = read_spec(skeleton_folder(tmp_path / "mine"))
    assert (spec.name, spec.version) == ("mine", "1")
    assert spec.segments == (("0.25", "0.5", "1.0"),) * 2
    assert len(spec.plans) == 9
    assert spec.follows_previous
    assert spec.labels == ("north", "east", "south", "west")
    assert spec.inputs[0].shape == (16,)


def test_reading_a_description_needs_no_torch(tmp_path: Path) -> None:
    folder = skeleton_folder(tmp_path / "mine")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from slimsched.models.package import read_spec\n"
        f"print(read_spec(Path({str(folder)!r})).name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "mine\n", done.stderr


def test_plans_can_be_uniform_or_written_out(tmp_path: Path) -> None:
    uniform = read_spec(tiny_folder(tmp_path / "a", top='plans = "uniform"'))
    assert uniform.plans == ((0, 0), (1, 1))
    written = read_spec(tiny_folder(tmp_path / "b", top='plans = [["0.5", "1.0"], ["1.0", "1.0"]]'))
    assert written.plans == ((0, 1), (1, 1))


def test_labels_may_stand_in_a_file(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, top='labels = "names.txt"')
    (folder / "names.txt").write_text("cat\ndog\n")
    assert read_spec(folder).labels == ("cat", "dog")


@pytest.mark.parametrize(
    ("top", "segments", "message"),
    [
        ("", '[[segment]]\nchoices = ["1.0", "0.5"]', "narrowest first is ['0.5', '1.0']"),
        ('plans = "some"', SEGMENTS, "plans = 'some' is not known"),
        ('plans = [["0.5", "0.7"]]', SEGMENTS, "segment 1 has no choice '0.7'; it has 0.5, 1.0"),
        ('plans = [["0.5", "0.5", "0.5"]]', SEGMENTS, "names 3 choices; the model has 2 segments"),
        ('labels = ["one"]', SEGMENTS, "there are 1 labels, but 'y' has 2 classes"),
        ('labels = "nowhere.txt"', SEGMENTS, "write one label per line"),
        ("colour = 3", SEGMENTS, "unknown field `colour`; known keys: name, code"),
        ("version = 2", SEGMENTS, "Expected `str`, got `int`"),
        ("", '[[segment]]\nchoices = ["a", "a"]', "must be different names"),
        ("plans = [", SEGMENTS, "cannot read"),
        ('plans = [["0.5"], ["0.5", "1.0"]]', SEGMENTS, "ends some plans, but plan [0, 1] goes on after it"),
    ],
)
def test_a_bad_description_says_what_is_wrong(tmp_path: Path, top: str, segments: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_spec(tiny_folder(tmp_path, top=top, segments=segments))
    assert message in str(error.value)
    assert "model.toml" in str(error.value)


def test_a_folder_without_a_model_says_how_to_start(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="slim model new"):
        read_spec(tmp_path)


def test_the_skeleton_loads_and_runs(tmp_path: Path) -> None:
    model = load_model(skeleton_folder(tmp_path / "mine"))
    (logits,) = run_plan(model, (0, 2), (torch.zeros(5, 16),))
    assert logits.shape == (5, 4)
    assert not any(weight.requires_grad for module in model.modules() for weight in module.parameters())


def test_weights_are_those_of_the_file(tmp_path: Path) -> None:
    folder = skeleton_folder(tmp_path / "mine")
    weights = {
        name: torch.full_like(one, 0.5) for name, one in load_file(folder / "weights.safetensors").items()
    }
    save_file({name: one.half() for name, one in weights.items()}, folder / "weights.safetensors")
    assert all((one == 0.5).all() for one in load_model(folder).weights().values())


def test_missing_extra_and_wrong_tensors_are_named(tmp_path: Path) -> None:
    folder = skeleton_folder(tmp_path / "mine")
    path = folder / "weights.safetensors"
    good = load_file(path)
    save_file({name: one for name, one in good.items() if name != "second.bias"}, path)
    with pytest.raises(ModelError, match=r"lacks tensor 'second.bias'"):
        load_model(folder)
    save_file(good | {"third.bias": torch.zeros(2)}, path)
    with pytest.raises(ModelError, match=r"holds tensor 'third.bias', which the model does not have"):
        load_model(folder)
    save_file(good | {"first.bias": torch.zeros(2)}, path)
    with pytest.raises(ModelError, match=r"'first.bias' has shape \(2,\), but the model needs \(64,\)"):
        load_model(folder)
    save_file(good | {"first.bias": torch.zeros(64, dtype=torch.int64)}, path)
    with pytest.raises(ModelError, match=r"'first.bias' is torch.int64"):
        load_model(folder)
    path.write_bytes(b"no weights")
    with pytest.raises(ModelError, match="cannot read weights"):
        load_model(folder)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build(spec):\n    return 1 / 0\n", "model.py, line 2: ZeroDivisionError: division by zero"),
        ("import torch\ndef build(spec)\n    pass\n", "model.py, line 2: expected ':'"),
        ("import no_such_package\n", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("def make(spec):\n    pass\n", "has no function 'build'; define build(spec) there"),
        ("def build(spec):\n    return spec\n", "returned ModelSpec, not an ElasticModel"),
        (
            "import torch\ndef build(spec):\n    torch.zeros(2) @ torch.zeros(3)\n",
            "model.py, line 3: RuntimeError",
        ),
    ],
)
def test_code_that_fails_is_named_by_file_and_line(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ModelError) as error:
        load_model(tiny_folder(tmp_path, code=code))
    assert message in str(error.value)


def test_code_and_description_must_agree(tmp_path: Path) -> None:
    own = CODE.replace("Model(spec)", "Model(replace(spec, nested=True))")
    folder = tiny_folder(tmp_path, code="from msgspec.structs import replace\n" + own)
    with pytest.raises(ModelError, match=r"disagree about nested: false in model.toml, true in the code"):
        load_model(folder)


def test_code_may_be_an_installed_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "my_elastic_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = tiny_folder(tmp_path / "model")
    text = (folder / "model.toml").read_text()
    (folder / "model.toml").write_text(text.replace("model.py:build", "my_elastic_code:build"))
    assert load_model(folder).spec.name == "tiny"
    (folder / "model.toml").write_text(text.replace("model.py:build", "no_such.module:build"))
    with pytest.raises(ModelError, match=r"no module 'no_such.module'"):
        load_model(folder)
    (folder / "model.toml").write_text(text.replace("model.py:build", "model.py"))
    with pytest.raises(ModelError, match="is not understood"):
        load_model(folder)


def test_code_may_import_files_beside_it_and_two_folders_do_not_mix(tmp_path: Path) -> None:
    models = []
    for number in (1, 2):
        folder = tiny_folder(
            tmp_path / str(number), code="from .size import SIZE\n" + CODE + "    \nMARK = SIZE\n"
        )
        (folder / "size.py").write_text(f"SIZE = {number}\n")
        models.append(load_model(folder))
    marks = [sys.modules[type(model).__module__].MARK for model in models]
    assert marks == [1, 2]


def test_quality_of_other_plans_is_refused(tmp_path: Path) -> None:
    folder = skeleton_folder(tmp_path / "mine")
    spec = read_spec(folder)
    texts = [spec.text(plan) for plan in spec.plans]
    with pytest.raises(DataError, match="slim model evaluate"):
        read_quality(folder)
    write_quality(folder / "quality.npz", np.ones((4, 10), dtype=bool))
    with pytest.raises(DataError, match="9 plans"):
        read_quality(folder)
    write_quality(folder / "quality.npz", np.ones((9, 10), dtype=bool), texts=texts[::-1])
    with pytest.raises(DataError, match="measured with other plans"):
        read_quality(folder)
    write_quality(folder / "quality.npz", np.ones((9, 10), dtype=bool), texts=texts, name="mine")
    table = read_quality(folder)
    assert (table.name, table.examples, table.accuracy((2, 2))) == ("mine", 10, 1.0)


def test_figures_survive_the_file_and_must_fit_the_description(tmp_path: Path) -> None:
    folder = skeleton_folder(tmp_path / "mine")
    with pytest.raises(DataError, match="run slim model check"):
        read_figures(folder)
    figures = check_model(load_model(folder)).figures
    assert figures is not None
    (folder / "figures.json").write_bytes(figures_json(read_spec(folder), figures))
    assert read_figures(folder) == figures
    text = (folder / "model.toml").read_text()
    (folder / "model.toml").write_text(text.replace('plans = "all"', 'plans = "uniform"'))
    with pytest.raises(DataError, match="other segments or plans"):
        read_figures(folder)


def test_profiles_are_listed(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "laptop.json").write_text("{}")
    assert [path.stem for path in profile_paths(tmp_path)] == ["laptop"]


def test_slimresnet_has_a_spec_that_the_package_can_name() -> None:
    assert len(network_spec(SLIM_RESNET).plans) == 256
