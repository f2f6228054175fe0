"""The log of a training run: one JSON line per epoch, and TensorBoard scalars if TensorBoard is installed."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from slimsched.models.training.loop import EpochReport
from slimsched.models.width import format_widths


class RunLog:
    """Appends every epoch's figures to `epochs.jsonl` and to TensorBoard event files in the run's folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = (folder / "epochs.jsonl").open("ab")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder))

    def write(self, report: EpochReport) -> None:
        """Write the figures of one epoch."""
        accuracy = {format_widths(widths): value for widths, value in report.accuracy.items()}
        self._lines.write(msgspec.json.encode(msgspec.to_builtins(report) | {"accuracy": accuracy}) + b"\n")
        self._lines.flush()
        if self._board is None:
            return
        scalars = {
            "loss/widest": report.loss_widest,
            "loss/others": report.loss_others,
            "schedule/learning_rate": report.learning_rate,
            "speed/epochs_per_minute": 60 / report.epoch_s,
        } | {f"accuracy_percent/{name}": value for name, value in accuracy.items()}
        for name, value in scalars.items():
            self._board.add_scalar(name, value, report.epoch)
        self._board.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()
