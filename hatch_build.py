"""Compiles the express lines with the machine's own C++ compiler, if there is one.

The one for gRPC also needs nghttp2 with its headers (Debian: libnghttp2-dev). Everything works without them,
only slower. The extensions use Python's stable interface, so one wheel serves all versions from 3.11 on.
`SLIM_PURE=1` leaves them out.

`SLIM_SANITIZE=address,undefined` compiles them with these sanitizers of the compiler, and
`python hatch_build.py FOLDER` into another folder; `tests/hostile/fuzz` does both.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand

    class BuildHookInterface:  # type: ignore[no-redef]
        """Stands in where nothing is packed."""


FOLDER = Path("src/slimsched/serving/api/express")
FLAGS = ["-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
LIBRARIES = {"express": [], "express_grpc": ["-lnghttp2"]}
"""What each extension is linked with."""


class CompileExpress(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the extensions to a wheel; an editable install finds them beside their sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which Pythons the wheel is for."""
        if self.target_name != "wheel" or not (built := compile_express(Path(self.root))):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"] += [f"/{one}" for one in built]


def compile_express(root: Path, into: Path = FOLDER) -> list[Path]:
    """Compile the extensions; return those for which this is possible and wanted."""
    return [
        built for name, libraries in LIBRARIES.items() if (built := _compile(root, into, name, libraries))
    ]


def compiler() -> list[str]:
    """Return the C++ compiler of this machine as a command; empty if there is none."""
    return (os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or "").split()


def sanitizing() -> list[str]:
    """Return the flags for the sanitizers that the environment names."""
    wanted = os.environ.get("SLIM_SANITIZE")
    return [*SANITIZED, f"-fsanitize={wanted}"] if wanted else []


def _compile(root: Path, into: Path, name: str, libraries: list[str]) -> Path | None:
    """Compile one extension, or say why not."""
    source, built = FOLDER / f"{name}.cpp", into / f"_{name}.abi3.so"
    (root / built).unlink(missing_ok=True)
    if os.environ.get("SLIM_PURE") or not sys.platform.startswith("linux") or not compiler():
        return None
    include = sysconfig.get_paths()["include"]
    flags = [*FLAGS, *sanitizing(), f"-I{include}"]
    command = [*compiler(), *flags, str(root / source), "-o", str(root / built)]
    protocol = "gRPC" if libraries else "HTTP"
    try:
        done = subprocess.run([*command, *libraries], capture_output=True, text=True, check=False)
    except OSError as error:
        print(f"{source.name} was not compiled ({error}); {protocol} is slower without it", file=sys.stderr)
        return None
    if done.returncode:
        why = "nghttp2's headers are missing" if "nghttp2.h: No such file" in done.stderr else done.stderr
        print(f"{source.name} was not compiled; {protocol} is slower without it: {why}", file=sys.stderr)
        return None
    return built


if __name__ == "__main__":
    done = compile_express(Path(__file__).parent, Path(sys.argv[1]).resolve() if sys.argv[1:] else FOLDER)
    sys.exit(0 if len(done) == len(LIBRARIES) else 1)
