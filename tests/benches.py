"""Modules of benchmarks/ for the tests that hold them; its folder is on the path only while they load.

For longer it would hide tests/jobs behind benchmarks/jobs.py.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """Import benchmarks/NAME.py."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
