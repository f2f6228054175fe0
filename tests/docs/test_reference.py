"""The pages of docs/reference are what the code says."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

SCRIPT = Path(__file__).parents[2] / "scripts" / "reference"


def generator() -> Any:
    loader = importlib.machinery.SourceFileLoader("reference", str(SCRIPT))
    spec = importlib.util.spec_from_loader("reference", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_key_says_what_it_means() -> None:
    module = generator()
    for kind in (*module.SECTIONS.values(), module.Device):
        meanings = module.comments(kind)
        for field in msgspec.structs.fields(kind):
            assert meanings[field.name], f"{kind.__name__}.{field.name} has no comment beside it"
