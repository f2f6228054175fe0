"""TLS at both ports is of Mozilla's "intermediate" grade: TLS 1.2 and 1.3, forward secrecy, no CBC."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from served import Served, serve

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")

KINDS = {"rsa": ["rsa:2048"], "ecdsa": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"]}


@pytest.fixture(scope="module", params=KINDS)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a certificate of its own; with a front process where it is of ECDSA."""
    folder = tmp_path_factory.mktemp("secured")
    cert, key = make_certificate(folder, KINDS[request.param])
    fronts = "1" if request.param == "ecdsa" else "0"
    running = serve(folder, "--tls-cert", str(cert), "--tls-key", str(key), "--fronts", fronts)
    yield running
    assert running.stop() == 0


def make_certificate(folder: Path, kind: list[str]) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    make = ["openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=localhost", "-newkey", *kind]
    subprocess.run([*make, "-out", str(cert), "-keyout", str(key)], check=True, capture_output=True)
    return cert, key


def handshake(address: str, *options: str) -> str:
    """Return version and suite that `openssl s_client` with these options agrees on; nothing if none."""
    lines = [line for line in s_client(address, *options).splitlines() if line.startswith("New, ")]
    return "" if not lines or "(NONE)" in lines[0] else lines[0].removeprefix("New, ")


def s_client(address: str, *options: str, typed: bytes = b"") -> str:
    """Return what `openssl s_client` says, and what the server sends."""
    command = ["openssl", "s_client", "-connect", address, "-alpn", "h2,http/1.1", *options]
    out = subprocess.PIPE
    done = subprocess.run(command, input=typed, stdout=out, stderr=subprocess.STDOUT, timeout=30)
    return done.stdout.decode("latin-1")


@pytest.fixture(params=["http", "grpc"])
def address(request: pytest.FixtureRequest, secured: Served) -> str:
    return str(getattr(secured, request.param))


@pytest.mark.parametrize(
    ("options", "suite"),
    [
        (["-tls1_3"], "TLS_AES_"),
        (["-tls1_2"], "GCM"),
        (["-tls1_2", "-cipher", "ECDHE+AES128+AESGCM"], "AES128-GCM-SHA256"),
        (["-tls1_2", "-cipher", "ECDHE+AES256+AESGCM"], "AES256-GCM-SHA384"),
        (["-tls1_2", "-cipher", "ECDHE+CHACHA20"], "CHACHA20-POLY1305"),
    ],
)
def test_what_is_strong_is_spoken(address: str, options: list[str], suite: str) -> None:
    agreed = handshake(address, *options)
    assert agreed.startswith("TLSv1.3" if options == ["-tls1_3"] else "TLSv1.2")
    assert suite in agreed


@pytest.mark.parametrize(
    "options",
    [
        ["-tls1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "ECDHE+AES:!AESGCM:!AESCCM:@SECLEVEL=0"],  # CBC
        ["-tls1_2", "-cipher", "kRSA:@SECLEVEL=0"],  # without forward secrecy
        ["-tls1_2", "-cipher", "DHE:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "aNULL:eNULL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "AESCCM:CAMELLIA:ARIA:@SECLEVEL=0"],
    ],
    ids=["1.0", "1.1", "CBC", "RSA", "DHE", "NULL", "rare"],
)
def test_what_is_weak_is_refused(address: str, options: list[str]) -> None:
    assert handshake(address, *options) == ""


def test_nobody_may_negotiate_again(address: str) -> None:
    """In s_client, a line with R asks for new keys in the midst of a connection, as TLS 1.2 knows it."""
    said = s_client(address, "-tls1_2", typed=b"R\n")
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said.lower() or "unexpected eof" in said, said
