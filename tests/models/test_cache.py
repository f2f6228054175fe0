"""The user's cache: its place follows from what a model is, not from what was measured about it."""

from pathlib import Path
from time import perf_counter

import pytest

from folders import tiny_folder
from slimsched.core.config import DataError
from slimsched.models.cache import PART_BYTES, WHOLE_BYTES, cache_folder, write_kept


def test_another_content_has_another_place(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mine")
    before = cache_folder(str(folder))
    (folder / "model.py").write_text(
        (folder / "model.py").read_text().replace("Linear(4, 8)", "Linear(4, 8 )")
    )
    assert cache_folder(str(folder)) != before
    assert before.name.startswith("mine-")


@pytest.mark.parametrize(
    "name",
    ["quality.npz", "figures.json", "profiles/here.json", "__pycache__/model.pyc", ".git/HEAD", ".seen"],
)
def test_what_is_measured_or_hidden_does_not_count(tmp_path: Path, name: str) -> None:
    folder = tiny_folder(tmp_path / "mine")
    before = cache_folder(str(folder))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("more")
    assert cache_folder(str(folder)) == before


def test_equal_folders_share_a_place_and_one_beside_the_scenario_is_found(tmp_path: Path) -> None:
    one, two = tiny_folder(tmp_path / "a" / "mine"), tiny_folder(tmp_path / "b" / "mine")
    assert cache_folder(str(one)) == cache_folder(str(two)) == cache_folder("mine", tmp_path / "a")


def test_of_a_large_file_three_parts_are_read(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mine")
    with (folder / "weights.safetensors").open("wb") as file:
        file.truncate(4 * WHOLE_BYTES)
    began_s = perf_counter()
    before = cache_folder(str(folder))
    assert perf_counter() - began_s < 1.0
    with (folder / "weights.safetensors").open("r+b") as file:
        file.seek(4 * WHOLE_BYTES - PART_BYTES // 2)
        file.write(b"changed")
    assert cache_folder(str(folder)) != before


def test_users_say_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SLIM_CACHE", str(tmp_path / "own"))
    assert cache_folder("slimresnet").parent == tmp_path / "own" / "models"
    monkeypatch.delenv("SLIM_CACHE")
    assert cache_folder("slimresnet").parent == tmp_path / "xdg" / "slim-scheduler" / "models"


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="set SLIM_CACHE to a folder"):
        write_kept(tmp_path / "file" / "figures.json", b"{}")
