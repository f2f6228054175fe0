"""A scenario with two unrelated models: slimresnet, and the skeleton with choices that are not numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np

SLIM = [sys.executable, "-c", "from slimsched.cli.app import main; main()"]
SIZES = '{"small": 0.25, "medium": 0.5, "large": 1.0}'
SCENARIO = """
name = "two-models"
[load]
rate_per_s = 3000.0
seconds = 2.0
deadline_s = 1.0
[link]
bandwidth_bytes_per_s = 260e6
latency_s = 0.001
[gateway]
step_s = 0.005
[scheduler]
batch_limit = 16
vram_cap_bytes = 5_000_000_000
[[model]]
source = "slimresnet"
share = 3.0
[[model]]
source = "sorter"
[[server]]
name = "server"
device = "rtx-2080-ti"
count = 2
"""


def slim(*arguments: str) -> str:
    """Run the command and return what it prints."""
    done = subprocess.run([*SLIM, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_two_models(folder: Path) -> Path:
    """Write the second model and the scenario; return the path of the scenario."""
    model = folder / "sorter"
    slim("model", "new", str(model))
    spec, code = model / "model.toml", model / "model.py"
    spec.write_text(spec.read_text().replace('"0.25", "0.5", "1.0"', '"small", "medium", "large"'))
    text = code.read_text().replace("float(choice)", f"{SIZES}[choice]")
    code.write_text(text.replace("float(previous or 1.0)", f'{SIZES}[previous or "large"]'))
    rng = np.random.default_rng(0)
    examples = folder / "examples.npz"
    np.savez(examples, x=rng.normal(size=(64, 16)).astype(np.float32), labels=rng.integers(0, 4, 64))
    slim("model", "check", str(model))
    slim("model", "evaluate", str(model), "--data", str(examples))
    (folder / "two.toml").write_text(SCENARIO.replace('"sorter"', f'"{model}"'))
    return folder / "two.toml"
