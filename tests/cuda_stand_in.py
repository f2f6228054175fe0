"""A library with the functions of libcuda over POSIX shared memory, for machines without a GPU."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from cuda_client import CudaClient

__all__ = ["CLIENT", "CudaClient", "build"]

CLIENT = Path(__file__).parents[1] / "benchmarks" / "cuda_client.py"


def build(folder: Path) -> str:
    """Compile the library and return where it is; each copy has a state of its own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = Path(__file__).with_name("fake_cuda.c"), folder / "libfake_cuda.so"
    command = [compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(source), "-lrt"]
    subprocess.run(command, check=True)
    return str(library)
