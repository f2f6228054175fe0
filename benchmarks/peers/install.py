"""Installs each peer in its own virtual environment, outside the tree, with the same PyTorch as ours."""

import re
import subprocess
import sys
from pathlib import Path

from contender import CONTENDERS, ROOT

OURS = ("torch", "numpy", "msgspec", "safetensors")


def install(name: str, venvs: Path) -> None:
    """Create the environment of one contender, unless it exists."""
    package = CONTENDERS[name].package
    folder = venvs / name
    if not package or (folder / "ready").exists():
        return
    print(f"installing {package} into {folder}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    pinned = re.findall(rf"^(?:{'|'.join(OURS)})==.*$", (ROOT / "constraints.txt").read_text(), re.M)
    (folder / "constraints.txt").write_text("\n".join(pinned) + "\n")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", folder / "constraints.txt", *OURS, package], check=True)
    (folder / "ready").touch()
