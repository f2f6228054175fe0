"""Compiles the express line with the machine's own C++ compiler, if there is one.

Everything works without it, only slower. The extension uses Python's stable interface, so one wheel serves
all versions from 3.11 on. `SLIM_PURE=1` leaves it out.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/slimsched/serving/api")
SOURCE, BUILT = FOLDER / "express.cpp", FOLDER / "_express.abi3.so"
FLAGS = ["-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]


class CompileExpress(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extension to a wheel; an editable install finds it beside its source."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which Pythons the wheel is for."""
        if self.target_name != "wheel" or not compile_express(Path(self.root)):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(f"/{BUILT}")


def compile_express(root: Path) -> bool:
    """Compile the extension; return False where this is not possible or not wanted."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    (root / BUILT).unlink(missing_ok=True)
    if os.environ.get("SLIM_PURE") or not sys.platform.startswith("linux") or not compiler:
        return False
    include = sysconfig.get_paths()["include"]
    command = [*compiler.split(), *FLAGS, f"-I{include}", str(root / SOURCE), "-o", str(root / BUILT)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"the express line was not compiled ({error}); HTTP is slower without it", file=sys.stderr)
        return False
    if done.returncode:
        print(f"the express line was not compiled; HTTP is slower without it\n{done.stderr}", file=sys.stderr)
    return done.returncode == 0
