"""The folder of sockets: private, gone at the end, and swept up after a gateway that was killed.

What others put into the temporary directory neither holds it up nor makes it remove anything else.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slimsched.serving.live import memory as shared_folder
from slimsched.serving.live import peers
from slimsched.serving.live.memory import SocketFolder

KILLED = """
import os, signal
from slimsched.serving.live.memory import SocketFolder
folder = SocketFolder()
(folder.path / "gateway").touch()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


NOBODY = 65534


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(shared_folder, "FOLDERS", [shared_folder.FOLDERS[0], tmp_path])


@pytest.fixture
def victims(tmp_path: Path) -> Iterator[list[Path]]:
    """Files of somebody else's making in both folders, such as another gateway's shared memory."""
    folders = [shared_folder.FOLDERS[0], tmp_path]
    files = [folder / name for folder in folders for name in ("slim-abcdefgh-1", "slim-abcdefgh-1-1")]
    for file in files:
        file.write_text("precious")
    yield files
    for file in files:
        file.unlink(missing_ok=True)


@pytest.fixture
def at_once() -> Iterator[None]:
    """End the test with an error if it takes long: what is tested would wait for ever."""

    def ring(*_: object) -> None:
        raise AssertionError("it hangs")

    old = signal.signal(signal.SIGALRM, ring)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def stale_folder(path: Path) -> Path:
    """A folder as a gateway that was killed leaves it."""
    path.mkdir(mode=0o700)
    (path / "lock").touch(mode=0o600)
    return path


def test_it_is_private_and_removed_at_the_end() -> None:
    folder = SocketFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    memory = peers.FOLDERS[0] / f"{folder.name}-left"
    memory.touch()
    folder.remove()
    assert not folder.path.exists()
    assert not memory.exists()


def test_what_a_killed_gateway_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    stale = Path(done.stdout.strip())
    assert stale.parent == tmp_path
    memory = peers.FOLDERS[0] / f"{stale.name}-1-1"
    memory.touch()
    stranger = tmp_path / "slim-somebody-elses"
    stranger.mkdir()
    alive = SocketFolder()
    assert not stale.exists()
    assert not memory.exists()
    another = SocketFolder()
    assert alive.path.exists()
    assert stranger.exists(), "without a lock it is not ours to remove"
    for folder in (alive, another):
        folder.remove()


@pytest.mark.parametrize("mode", [0o600, 0o644])  # earlier versions made locks with the second
def test_a_folder_with_a_mkdtemp_name_and_a_free_lock_is_removed(tmp_path: Path, mode: int) -> None:
    stale = stale_folder(tmp_path / "slim-a1b2c3_d")
    (stale / "lock").chmod(mode)
    SocketFolder().remove()
    assert not stale.exists()


@pytest.mark.usefixtures("at_once")
def test_a_pipe_in_the_place_of_a_lock_holds_nobody_up(tmp_path: Path) -> None:
    for name in ("slim-abcdefgh", "slim-xyz"):
        (tmp_path / name).mkdir(mode=0o700)
        os.mkfifo(tmp_path / name / "lock")
    SocketFolder().remove()
    assert (tmp_path / "slim-abcdefgh" / "lock").is_fifo()


@pytest.mark.usefixtures("at_once")
def test_a_pipe_in_the_place_of_a_folder_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slim-abcdefgh")
    SocketFolder().remove()
    assert (tmp_path / "slim-abcdefgh").is_fifo()


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    target = stale_folder(tmp_path / "documents")
    (tmp_path / "slim-abcdefgh").symlink_to(target)
    memory = tmp_path / "slim-abcdefgh-1"
    memory.touch()
    SocketFolder().remove()
    assert (target / "lock").exists()
    assert memory.exists()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    document, folder = tmp_path / "document", tmp_path / "slim-abcdefgh"
    document.touch(mode=0o600)
    folder.mkdir(mode=0o700)
    (folder / "lock").symlink_to(document)
    SocketFolder().remove()
    assert (folder / "lock").is_symlink()
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(tmp_path / "new")
    SocketFolder().remove()
    assert not (tmp_path / "new").exists(), "opening it would have made a file"


@pytest.mark.parametrize("name", ["slim-*", "slim-?bcdefgh", "slim-[a-h]*", "slim-abc", "slim-ABCDEFGH"])
def test_a_folders_name_is_no_pattern(tmp_path: Path, victims: list[Path], name: str) -> None:
    folder = stale_folder(tmp_path / name)
    SocketFolder().remove()
    assert all(file.read_text() == "precious" for file in victims)
    assert folder.exists(), "mkdtemp gives no such name"


def test_a_folder_that_others_may_enter_is_left_alone(tmp_path: Path, victims: list[Path]) -> None:
    folder = stale_folder(tmp_path / "slim-abcdefgh")
    folder.chmod(0o777)
    SocketFolder().remove()
    assert folder.exists()
    assert all(file.exists() for file in victims)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_left_alone(tmp_path: Path, victims: list[Path]) -> None:
    theirs, half = stale_folder(tmp_path / "slim-abcdefgh"), stale_folder(tmp_path / "slim-hgfedcba")
    os.chown(theirs, NOBODY, NOBODY)
    os.chown(half / "lock", NOBODY, NOBODY)
    SocketFolder().remove()
    assert theirs.exists()
    assert half.exists()
    assert all(file.exists() for file in victims)
    shutil.rmtree(theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_of_shared_memory_only_regular_files_of_this_user_are_removed(tmp_path: Path) -> None:
    folder = SocketFolder()
    theirs, ours = (tmp_path / f"{folder.name}-1-{name}" for name in ("theirs", "ours"))
    link, pipe = (tmp_path / f"{folder.name}-2-{name}" for name in ("link", "pipe"))
    theirs.touch()
    ours.touch()
    os.chown(theirs, NOBODY, NOBODY)
    link.symlink_to(theirs)
    os.mkfifo(pipe)
    folder.remove()
    assert [theirs.exists(), ours.exists(), link.is_symlink(), pipe.is_fifo()] == [True, False, True, True]
