"""Compile the job scheduler and simulator with mypyc, for long studies: at least twice the events per second.

    python benchmarks/compile_jobs.py build/compiled
    PYTHONPATH=build/compiled slim jobs compare ...

The source stays as it is, and the compiled copy gives the same logs. This needs a C compiler, `mypy` and
`setuptools` (the `dev` extra installs the last two). Compile again when the source changes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "slimsched"
MODULES = [
    *[
        f"slimsched/jobs/scheduler/{name}.py"
        for name in ("eviction", "gpus", "network", "policy", "scheduler", "waiting")
    ],
    "slimsched/jobs/policies/dally.py",
    "slimsched/jobs/simulated/cluster.py",
    "slimsched/core/clock.py",
]
OPEN_CLASSES = (
    ("scheduler/policy.py", "Policy"),
    ("policies/dally.py", "Tuner"),
    ("policies/dally.py", "Dally"),
)
"""Classes that have subclasses in modules we do not compile."""
OPEN = "import mypy_extensions\n\n\n@mypy_extensions.mypyc_attr(allow_interpreted_subclasses=True)"
SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(name="slimsched-compiled", packages=[], ext_modules=mypycify({modules!r}, opt_level="3"))
"""
OPTIONS = ["--follow-imports=silent", "--ignore-missing-imports", "--no-site-packages"]
"""What the compiled modules import is looked at for its types only, and not at all outside the package."""


def main(folder: Path) -> None:
    """Copy the package and compile the hot modules in the copy."""
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(SOURCE, folder / "slimsched", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(SOURCE.parents[1] / "configs", folder / "slimsched" / "configs")
    for module, name in OPEN_CLASSES:
        path = folder / "slimsched" / "jobs" / module
        path.write_text(path.read_text().replace(f"\nclass {name}", f"\n{OPEN}\nclass {name}", 1))
    (folder / "setup.py").write_text(SETUP.format(modules=OPTIONS + MODULES))
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, check=True)
    shutil.rmtree(folder / "build")
    print(f"use it with: PYTHONPATH={folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/compiled"))
