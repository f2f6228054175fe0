"""The folder of sockets: private, gone at the end, and swept up after a gateway that was killed."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slimsched.serving.execution.live import shared_tensor
from slimsched.serving.execution.live.socket_folder import SocketFolder

KILLED = """
import os, signal
from slimsched.serving.execution.live.socket_folder import SocketFolder
folder = SocketFolder()
(folder.path / "gateway").touch()
print(folder.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_it_is_private_and_removed_at_the_end() -> None:
    folder = SocketFolder()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    memory = shared_tensor.FOLDERS[0] / f"{folder.name}-left"
    memory.touch()
    folder.remove()
    assert not folder.path.exists()
    assert not memory.exists()


def test_what_a_killed_gateway_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    stale = Path(done.stdout.strip())
    assert stale.parent == tmp_path
    memory = shared_tensor.FOLDERS[0] / f"{stale.name}-1-1"
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
