"""Tensors between processes: what is written is read, also where the memory for it is full."""

import os
import resource
from pathlib import Path

import pytest
import torch

from slimsched.serving.live import peers


def test_a_tensor_is_read_once_and_leaves_nothing_behind() -> None:
    values = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    name, facts = peers.put(values, "slim-test-tensor")
    path = peers.FOLDERS[0] / name
    assert path.stat().st_mode & 0o777 == 0o600, "nobody else reads it"
    assert torch.equal(peers.take(name, facts), values)
    assert not path.exists()


def test_where_the_memory_is_full_a_tensor_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, disk = tmp_path / "full", tmp_path / "disk"
    full.mkdir()
    disk.mkdir()
    monkeypatch.setattr(peers, "FOLDERS", [full, disk])
    allocate = os.posix_fallocate

    def refused_in_the_first(file: int, start: int, size: int) -> None:
        if Path(f"/proc/self/fd/{file}").resolve().parent == full:
            raise OSError(28, "No space left on device")
        allocate(file, start, size)

    monkeypatch.setattr(os, "posix_fallocate", refused_in_the_first)
    values = torch.randn(1000)
    name, facts = peers.put(values, "slim-test-tensor")
    assert not list(full.iterdir())
    assert torch.equal(peers.take(name, facts), values)
    assert not list(disk.iterdir())


@pytest.mark.parametrize("put_there", ["pipe", "link", "folder", "file of another user", "open file"])
def test_what_somebody_puts_into_the_first_folder_is_not_taken_for_the_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_there: str
) -> None:
    if put_there == "file of another user" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    public, disk = tmp_path / "public", tmp_path / "disk"
    public.mkdir()
    disk.mkdir()
    values = torch.randn(1000)
    monkeypatch.setattr(peers, "FOLDERS", [disk])
    name, facts = peers.put(values, "slim-test-tensor")
    match put_there:
        case "pipe":
            os.mkfifo(public / name)  # opening it would wait for ever
        case "link":
            secret = tmp_path / "secret"
            secret.write_bytes(bytes(4000))
            (public / name).symlink_to(secret)
        case "folder":
            (public / name).mkdir()
        case _:
            (public / name).write_bytes(bytes(4000))
            (public / name).chmod(0o600 if "user" in put_there else 0o666)
            if "user" in put_there:
                os.chown(public / name, 65534, 65534)
    monkeypatch.setattr(peers, "FOLDERS", [public, disk])
    assert torch.equal(peers.take(name, facts), values)
    assert os.path.lexists(public / name)
    assert not list(disk.iterdir())


def test_no_room_anywhere_is_an_error_and_not_the_end_of_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, hard))
    try:
        with pytest.raises(OSError, match="large"):
            peers.put(torch.zeros(2**20), "slim-test-tensor")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
