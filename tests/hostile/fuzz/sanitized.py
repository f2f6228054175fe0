"""Builds the compiled lines with sanitizers, apart from the ordinary ones, and serves with them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from served import CONFIG

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "fuzz"
SANITIZERS = "address,undefined"
QUARANTINE_MB = 16
"""How much freed memory the address sanitizer keeps, so that late uses of it are seen."""

OPTIONS = {
    "ASAN_OPTIONS": f"detect_leaks=0:abort_on_error=1:quarantine_size_mb={QUARANTINE_MB}"
    ":malloc_context_size=6:allocator_may_return_null=1:detect_odr_violation=0:handle_abort=0",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}
"""Leaks are not looked for: Python itself leaves much at its end. The bound on memory finds what matters."""

LIMITS = {
    "head_s": "1",
    "grace_s": "1",
    "idle_s": "2",
    "drain_s": "3",
    "connections": "1024",
    "connections_per_address": "512",
    "held_bytes": str(64 * 2**20),
}
"""Limits in time are short, so that what is held is let go within seconds; those in bytes are small."""

START_S = 120.0


def build() -> Path:
    """Compile the extensions with sanitizers, and return a copy of the package that has them."""
    source = next((ROOT / "src").rglob("express.cpp")).parent
    tree, built = FOLDER / "tree", FOLDER / "sanitized"
    built.mkdir(parents=True, exist_ok=True)
    changed_s = max(one.stat().st_mtime for one in source.glob("express*.[ch]pp"))
    names = ("_express.abi3.so", "_express_grpc.abi3.so")
    if not all((built / name).exists() and (built / name).stat().st_mtime > changed_s for name in names):
        print(f"compiling with -fsanitize={SANITIZERS} into {built.relative_to(ROOT)}", flush=True)
        environment = {**os.environ, "SLIM_SANITIZE": SANITIZERS}
        done = subprocess.run([sys.executable, ROOT / "hatch_build.py", built], env=environment)
        if done.returncode:
            raise SystemExit("the compiled lines cannot be built here: install g++ and libnghttp2-dev")
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(
        ROOT / "src",
        tree / "src",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    (tree / "configs").symlink_to(ROOT / "configs")
    for name in names:
        (tree / source.relative_to(ROOT) / name).symlink_to(built / name)
    return tree / "src"


def _library(name: str) -> str:
    """Return where the compiler has a library that must be loaded before everything else."""
    compiler = os.environ.get("CXX") or "c++"
    done = subprocess.run([*compiler.split(), f"-print-file-name={name}"], capture_output=True, text=True)
    path = Path(done.stdout.strip())
    if not path.is_absolute():  # clang keeps its own in another way
        raise SystemExit(f"{compiler} has no {name}; install g++, and leave CXX unset")
    return str(path.resolve())


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Server:
    """`slim serve` under attack; it can be started again at the same ports."""

    def __init__(self, *, is_sanitized: bool) -> None:
        self._is_sanitized = is_sanitized
        self.http_port, self.grpc_port = free_port(), free_port()
        self.log, self._reports = FOLDER / "serve.log", FOLDER / "report"
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in (self.log, *self.reports()):
            old.unlink(missing_ok=True)
        self._source = build() if is_sanitized else ROOT / "src"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the gateway."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it and wait until it is ready."""
        config = FOLDER / "one-core.toml"
        config.write_text(CONFIG.rpartition("[[server]]")[0])
        environment = {**os.environ, "PYTHONPATH": str(self._source), "COLUMNS": "200"}
        if self._is_sanitized:
            environment["LD_PRELOAD"] = " ".join(map(_library, ("libasan.so", "libubsan.so", "libstdc++.so")))
            for name, options in OPTIONS.items():
                environment[name] = f"{options}:log_path={self._reports}"
        start = "import os; os.environ.pop('LD_PRELOAD', 0); from slimsched.cli.app import main; main()"
        command = [sys.executable, "-c", start, "serve", "--config", str(config), "--fronts", "0"]
        command += ["--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port), "--shared-memory"]
        command += [word for name, value in LIMITS.items() for word in ("--limit", f"{name}={value}")]
        at = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        give_up_s = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < give_up_s:
            if re.search(r"ready: http", self.log.read_text(errors="replace")[at:]):
                self._check_lines()
                return
            time.sleep(0.1)
        self.kill()
        raise SystemExit(f"the server did not start:\n{self.log.read_text(errors='replace')[at:]}")

    def _check_lines(self) -> None:
        """Make sure that what is attacked is what was built."""
        loaded = Path(f"/proc/{self.pid}/maps").read_text()
        for name in ("_express.abi3.so", "_express_grpc.abi3.so"):
            where = str(FOLDER / "sanitized" / name) if self._is_sanitized else name
            if where not in loaded:
                self.kill()
                raise SystemExit(f"{where} is not loaded: build it first (make setup)")

    def reports(self) -> list[Path]:
        """The reports of the sanitizers."""
        return sorted(FOLDER.glob("report.*"))

    def stop(self) -> int:
        """Ask it to end; return its exit code, or -9 if it had to be killed."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
        return int(self.process.returncode)

    def kill(self) -> None:
        """End it at once."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
