"""Servers of the tests, forked from a process that has imported torch and loaded the shipped network.

A server spends most of its start on these two.

Run as a program it is that process, which forks a server whenever a gateway asks for one. In a gateway,
`lend(address, names)` makes it ask there. `serve(..., warm=False)` starts servers as they start for users.
"""

import atexit
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel
    from slimsched.serving.domain.model import ServedModel

SERVER = "slimsched.serving.live.server"
ENVIRONMENT = dict(os.environ)  # before any test changes it

READ_AT_START = ("CUDA", "GOMP", "KMP", "LD_", "MALLOC", "MKL", "OMP", "ONEDNN", "PYTHON", "SLIM_HOPS")
"""Variables that begin like this are read when a program starts; a server that needs others starts anew."""


@cache
def warm_servers() -> str:
    """Start the process that servers are forked from, once in each process of pytest; return its address."""
    from slimsched.serving.live import engine

    folder = tempfile.mkdtemp(prefix="warm-start-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = f"{folder}/socket"
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    kernels = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(engine.KERNELS)}
    environment = {**ENVIRONMENT, **threads, **kernels, **engine.KEEP_MEMORY}
    with _listen(address) as listener:
        listening = (listener.fileno(),)
        command = [sys.executable, __file__, str(listener.fileno())]
        # It ends when its standard input does, which is when this process ends.
        _keep.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, pass_fds=listening))
    return address


_keep: list["subprocess.Popen[bytes]"] = []


def lend(address: str, names: str) -> None:
    """Let the gateway in this process ask there for its servers, and write their process ids to a file."""
    from slimsched.serving.live import processes

    processes.subprocess = asking(lambda: address, names)  # type: ignore[assignment]


def asking(address: Callable[[], str], names: str = os.devnull) -> SimpleNamespace:
    """Return what a gateway uses of the module `subprocess`, with servers that are forked where possible."""

    def start(command: list[str], **options: Any) -> Any:
        environment: Mapping[str, str] = options["env"]
        if command[-1] != SERVER or (server := _ask(address(), environment)) is None:
            return subprocess.Popen(command, **options)
        with Path(names).open("a") as file:
            file.write(f"{server.pid}\n")
        return server

    return SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)


class WarmServer:
    """A forked server, as its gateway sees it: what `ChildProcess` uses of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket, stdin: IO[bytes]) -> None:
        self._connection, self._said = connection, connection.makefile()
        self.stdin, self.pid, self.returncode = stdin, int(self._said.readline()), None

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        self.returncode = int(self._said.readline() or -signal.SIGKILL)  # type: ignore[assignment]
        self._connection.close()
        return self.returncode  # type: ignore[return-value]


def _ask(address: str, environment: Mapping[str, str]) -> WarmServer | None:
    """Ask for a server with this environment; None if it must start anew."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        read, write = os.pipe()
        spec = json.dumps({"environment": dict(environment), "folder": os.getcwd()}).encode()
        socket.send_fds(connection, [len(spec).to_bytes(4)], [read, 1, 2])
        connection.sendall(spec)
        os.close(read)
        if connection.recv(1) != b"+":
            os.close(write)
            return None
        return WarmServer(connection.dup(), os.fdopen(write, "wb", buffering=0))


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    return listener


# -- The process that servers are forked from.


def main() -> None:
    """Fork a server for each that asks; in a server, be that server."""
    from slimsched.serving.live import server

    _load_shipped_model()
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    if _fork_forever(listener):
        sys.argv = ["server"]
        server.main()


def _load_shipped_model() -> None:
    """Load the shipped network: servers that are forked need not."""
    from slimsched.serving.live import server
    from slimsched.serving.scenario.files import load_elastic, shipped_model

    ready = [load_elastic(shipped_model())]

    def loaded(model: "ServedModel") -> "ElasticModel":
        return ready.pop() if ready and not model.folder else load_elastic(model)

    server.load_elastic = loaded  # type: ignore[attr-defined]


def _fork_forever(listener: socket.socket) -> bool:
    """Return True in each server, and False when standard input has ended."""
    followed: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return False
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    if not _is_possible(spec := _read(connection)):
                        connection.close()
                        _close(spec["files"])
                        continue
                    assert threading.active_count() == 1, "a fork takes no threads along"
                    if (pid := os.fork()) == 0:
                        for other in (listener, connection, *(each for _, each in followed.values())):
                            other.close()
                        _close(list(followed))
                        _become(spec)
                        return True
                    _close(spec["files"])
                    connection.sendall(b"+%d\n" % pid)
                    ended = os.pidfd_open(pid)
                    followed[ended] = pid, connection
                    selector.register(ended, selectors.EVENT_READ)
                else:
                    selector.unregister(key.fd)
                    pid, connection = followed.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    os.close(key.fd)
                    with connection:
                        _tell(connection, code)


def _tell(connection: socket.socket, code: int) -> None:
    with suppress(OSError):  # the gateway has ended before its server
        connection.sendall(b"%d\n" % code)


def _read(connection: socket.socket) -> dict[str, Any]:
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    length, data = int.from_bytes(head), b""
    while len(data) < length:
        data += connection.recv(length - len(data))
    return {**json.loads(data), "files": files}


def _is_possible(spec: dict[str, Any]) -> bool:
    def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}

    return read_at_start(spec["environment"]) == read_at_start(os.environ)


def _become(spec: dict[str, Any]) -> None:
    """Take over what a process gets from the one that starts it."""
    os.setpgid(0, 0)
    for number, file in enumerate(spec["files"]):
        os.dup2(file, number)
    _close(spec["files"])
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(spec["folder"])
    os.environ.clear()
    os.environ.update(spec["environment"])


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


if __name__ == "__main__":
    main()
