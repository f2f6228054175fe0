"""The threads of a compiled line share no memory without a lock: the thread sanitizer watches them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LINES = next((HERE.parents[1] / "src").rglob("express_line.hpp")).parent
FLAGS = ["-std=c++20", "-g", "-O1", "-fsanitize=thread", "-pthread", "-Wno-tsan"]
SECONDS = "10"
FLAGS_OF = {"http": ([], []), "grpc": (["-DGRPC"], ["-lnghttp2"])}


def compiled(folder: Path, protocol: str) -> Path:
    """Compile the program; skip the test where that is not possible, unless it must be."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or "c++"
    define, libraries = FLAGS_OF[protocol]
    command = [*compiler.split(), *FLAGS, *define, f"-I{LINES}", str(HERE / "tsan_lines.cpp")]
    why = "there is no C++ compiler"
    if shutil.which(command[0]):
        program = folder / f"lines-{protocol}"
        done = subprocess.run([*command, "-o", str(program), *libraries], capture_output=True, text=True)
        if done.returncode == 0:
            return program
        why = done.stderr
    is_lacking = any(one in why for one in ("no C++", "nghttp2.h: No such file", "cannot find", "libtsan"))
    if is_lacking and not os.environ.get("SLIM_REQUIRE_EXPRESS_GRPC"):
        pytest.skip(f"compiler, thread sanitizer and nghttp2 are needed: {why.strip()[-200:]}")
    pytest.fail(f"tsan_lines.cpp was not compiled: {why[-3000:]}")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_threads_of_a_compiled_line_do_not_race(tmp_path: Path, protocol: str) -> None:
    program = compiled(tmp_path, protocol)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=0 exitcode=66 second_deadlock_stack=1"}
    done = subprocess.run([program, SECONDS], capture_output=True, text=True, timeout=120, env=environment)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:6000]
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr[-3000:]}"
