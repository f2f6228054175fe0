"""Tokens, keys and files that the operator names."""

import http.client
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from served import Served
from slimsched.core.config import ConfigError, read_small_file
from slimsched.serving.api.client.client import Client
from slimsched.serving.api.limits import read_token
from slimsched.serving.api.pages import GoalState


def test_a_token_in_a_file_does_not_show_among_the_processes(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    served = own_server("--token-file", str(tmp_path / "token"))
    assert b"s3cret" not in Path(f"/proc/{served.process.pid}/cmdline").read_bytes()

    def status(**headers: str) -> int:
        connection = http.client.HTTPConnection(served.http, timeout=30)
        connection.request("GET", "/v2", headers=headers)
        return connection.getresponse().status

    assert status() == 401
    assert status(authorization="Bearer s3cret") == 200


@pytest.mark.parametrize("token", ["schlüssel", "鍵", "two words", "line\nend", "tab\t", "x" * 5000])
def test_a_token_that_no_header_can_carry_is_refused_at_the_start(token: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="visible ASCII"):
        read_token(token, None)
    with pytest.raises(ConfigError, match="visible ASCII"):
        Client(token=token)


def test_a_file_without_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_token("", tmp_path / "empty")
    with pytest.raises(ConfigError, match="leave one of them out"):
        read_token("one", tmp_path / "empty")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_not_a_file(device: str) -> None:
    with pytest.raises((ConfigError, OSError)):
        read_small_file(Path(device), 100)
    if device != "/dev/tty":
        with pytest.raises(ConfigError, match="name another with --state"):
            GoalState(Path(device), "goal").read()


def test_a_pipe_and_a_large_file_are_refused(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 101)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_small_file(tmp_path / "pipe", 100)
    with pytest.raises(ConfigError, match="larger than 100 bytes"):
        read_small_file(tmp_path / "large", 100)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key")
def test_an_encrypted_key_is_refused_without_asking_for_a_password(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:word", "-days", "1"]
    make += ["-subj", "/CN=localhost", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(make, check=True, capture_output=True)
    code = "import sys; from pathlib import Path; from slimsched.serving.api.grpc_server import read_tls;"
    code += "read_tls(Path(sys.argv[1]), Path(sys.argv[2]))"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(cert), str(key)], capture_output=True, text=True, timeout=60
    )
    assert "the key is encrypted; decrypt it" in ran.stderr
