"""A folder of runs: one sub-folder per start, the oldest removed first."""

from pathlib import Path

import pytest

from slimsched.core.config import DataError
from slimsched.core.log import Header, LogFolder, LogWriter, log_path

HEADER = Header(slim="test", kind="serving", setting={})


def old_run(folder: Path, name: str, size: int) -> Path:
    run = folder / name
    run.mkdir()
    LogWriter(log_path(run), HEADER).close()
    (run / "events-server-0.jsonl.gz").write_bytes(bytes(size))
    return run


def test_every_start_has_a_folder_of_its_own(tmp_path: Path) -> None:
    runs = [LogFolder(tmp_path / "logs", 1000).run for _ in range(3)]
    assert len(set(runs)) == 3
    assert all(run.is_dir() for run in runs)
    assert runs == sorted(runs)


def test_the_oldest_runs_go_first_and_the_current_one_and_other_files_stay(tmp_path: Path) -> None:
    old = [old_run(tmp_path, f"2024010{day}T120000Z", 4000) for day in (1, 2, 3)]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "events.jsonl.gz").write_bytes(bytes(100_000))
    folder = LogFolder(tmp_path, 9000)
    assert [run.exists() for run in old] == [False, True, True]
    log_path(folder.run).write_bytes(bytes(6000))
    folder.make_room()
    assert [run.exists() for run in old] == [False, False, False]
    log_path(folder.run).write_bytes(bytes(60_000))
    folder.make_room()
    assert folder.run.exists()
    assert mine.exists()


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="choose another"):
        LogFolder(tmp_path / "file", 1000)
