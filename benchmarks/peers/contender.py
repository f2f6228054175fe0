"""The servers we compare: how to install, start and ask each, and how to read its answers."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec import Struct
from setting import Setting

from slimsched.serving.api.client.client import ServerAnswer, read_answer
from slimsched.serving.api.client.load import Inputs, Reply, RequestPrefix, Target

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_LIMIT_S = 120.0
OUR_CONFIG, OUR_OPTIONS, OWN_CHOICE = "SLIM_PEER_CONFIG", "SLIM_PEER_OPTIONS", "machine"
"""Environment variables with the scenario for our server, or `machine`, and with options of `slim serve`."""


class Contender(Struct, frozen=True, kw_only=True):
    """A server that people would choose; `package` is empty for ours."""

    name: str
    package: str
    command: Callable[[Path, Setting], list[str]]
    ready: str
    path: str
    read: Callable[[Reply], ServerAnswer]

    def prefix(self, terms: dict[str, float | str]) -> RequestPrefix:
        """Return a writer of request prefixes: our protocol with terms for ours, raw bytes for the others."""
        if not self.package:
            return Target().prefix(terms)

        def write(host: str, example: Inputs) -> bytes:
            size = sum(array.nbytes for array in example.values())
            return (
                f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/octet-stream\r\n"
                f"content-length: {size}\r\n\r\n"
            ).encode()

        return write


class Running:
    """A running contender in its own process group; stopping it leaves no process behind."""

    def __init__(self, contender: Contender, setting: Setting, venvs: Path, log: Path) -> None:
        python = venvs / contender.name / "bin" / "python" if contender.package else Path(sys.executable)
        environment = {
            **os.environ,
            **setting.environment(),
            "PYTHONPATH": f"{ROOT / 'src'}:{HERE}",
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "BENTOML_DO_NOT_TRACK": "true",
            "RAY_USAGE_STATS_ENABLED": "0",
            "LITSERVE_DO_NOT_TRACK": "1",
        }
        with log.open("w") as out:
            self._process = subprocess.Popen(
                contender.command(python, setting),
                stdout=out,
                stderr=out,
                env=environment,
                cwd=HERE,
                start_new_session=True,
            )
        self._wait(f"http://127.0.0.1:{setting.port}{contender.ready}", log)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the server to stop, wait, then kill what is left."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the server, or children that outlived it
        self._process.wait()

    def _wait(self, url: str, log: Path) -> None:
        give_up_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < give_up_s and self._process.poll() is None:
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except OSError as error:
                if getattr(error, "code", 503) in (404, 405):
                    return
            time.sleep(0.1)
        self.stop()
        raise SystemExit(f"{url} was not ready; see {log}:\n{log.read_text()[-2000:]}")


def read_raw(reply: Reply) -> ServerAnswer:
    """Read classes that are raw int64."""
    return ServerAnswer(outputs={"classes": np.frombuffer(reply.body, np.int64)}, receipt={})


def read_json(reply: Reply) -> ServerAnswer:
    """Read classes that are a JSON list."""
    return ServerAnswer(outputs={"classes": np.array(json.loads(reply.body), np.int64)}, receipt={})


def _script(name: str) -> Callable[[Path, Setting], list[str]]:
    return lambda python, setting: [str(python), str(HERE / f"with_{name}.py")]


def _bentoml(python: Path, setting: Setting) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", str(setting.port)]
    return [
        str(python),
        "-m",
        "bentoml",
        "serve",
        "with_bentoml:Classify",
        "--working-dir",
        str(HERE),
        *address,
    ]


def _ours(python: Path, setting: Setting) -> list[str]:
    start = [str(python), "-c", "from slimsched.cli.app import main; main()", "serve"]
    ports = ["--http-port", str(setting.port), "--grpc-port", "0"]
    router = ["--router", setting.router] if setting.router else []
    more = os.environ.get(OUR_OPTIONS, "").split()
    config = os.environ[OUR_CONFIG]
    return [*start, *([] if config == OWN_CHOICE else ["--config", config]), *ports, *router, *more]


CONTENDERS = {
    one.name: one
    for one in (
        Contender(
            name="mosec",
            package="mosec",
            command=_script("mosec"),
            ready="/",
            path="/inference",
            read=read_raw,
        ),
        Contender(
            name="litserve",
            package="litserve",
            command=_script("litserve"),
            ready="/health",
            path="/predict",
            read=read_raw,
        ),
        Contender(
            name="bentoml",
            package="bentoml",
            command=_bentoml,
            ready="/readyz",
            path="/classify",
            read=read_json,
        ),
        Contender(
            name="ray",
            package="ray[serve]",
            command=_script("ray"),
            ready="/-/healthz",
            path="/classify",
            read=read_raw,
        ),
        Contender(
            name="ours",
            package="",
            command=_ours,
            ready="/v2/health/ready",
            path="",
            read=lambda reply: read_answer(reply.body, reply.json_bytes),
        ),
    )
}
