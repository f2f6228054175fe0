"""A training run on disk: saves it so that it can resume later, and plots its curve."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slimsched.kernel.errors import DataError
from slimsched.serving.learning.ppo import PpoTrainer, Progress
from slimsched.serving.telemetry.plots import pyplot


def save_run(path: Path, trainer: PpoTrainer, curve: list[Progress]) -> None:
    """Write what a run needs to resume: network, optimiser, state statistics and curve."""
    tensors = {f"network.{name}": value for name, value in trainer.network.state_dict().items()}
    for number, state in trainer.optimiser.state_dict()["state"].items():
        tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
    tensors["mean"], tensors["deviation"] = torch.tensor(trainer.mean), torch.tensor(trainer.deviation)
    saved = {
        "update": trainer.update_number,
        "statistics": trainer.statistics,
        "curve": msgspec.to_builtins(curve),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    path.with_suffix(".json").write_text(json.dumps(saved))


def resume_run(path: Path, trainer: PpoTrainer) -> list[Progress]:
    """Bring a trainer to where a saved run stopped, and return the curve so far."""
    try:
        tensors = load_file(path)
        saved = json.loads(path.with_suffix(".json").read_text())
        network = {n.removeprefix("network."): v for n, v in tensors.items() if n.startswith("network.")}
        trainer.network.load_state_dict(network)
        adam = trainer.optimiser.state_dict()
        adam["state"] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, number, part = name.split(".", 2)
                adam["state"].setdefault(int(number), {})[part] = value
        trainer.optimiser.load_state_dict(adam)
        trainer.mean, trainer.deviation = tensors["mean"].numpy().copy(), tensors["deviation"].numpy().copy()
        trainer.resume(int(saved["update"]), tuple(saved["statistics"]))
        return [msgspec.convert(row, Progress) for row in saved["curve"]]
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        text = str(error).splitlines()[0]
        raise DataError(
            f"{path.name} is not a training run of this scenario ({text}); start without --resume"
        ) from None


def plot_curve(series: Mapping[str, Sequence[float]], title: str, path: Path) -> None:
    """Plot each series over the updates, one panel per series."""
    plt = pyplot()
    figure, panels = plt.subplots(1, len(series), figsize=(4 * len(series), 3.2), layout="constrained")
    figure.suptitle(title)
    for panel, (name, values) in zip(panels, series.items(), strict=True):
        panel.plot(range(1, len(values) + 1), values, linewidth=1)
        panel.set(xlabel="update", title=name)
    figure.savefig(path, dpi=110)
    plt.close(figure)
