"""Progress bars on standard error, so that standard output stays for results."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from slimsched.models.training.loop import EpochReport


class TrainingProgress:
    """A bar over the epochs with the losses beside it; plain lines where the output is no terminal."""

    def __init__(self, epochs: int) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=epochs)
        self._epoch = 0
        self._last_line_s = 0.0

    def advance(self, step: int, steps: int) -> None:
        """One step of an epoch is done."""
        self._bar.update(self._task, completed=self._epoch + step / steps)

    def report(self, report: "EpochReport") -> None:
        """One epoch is done."""
        self._epoch = report.epoch
        text = f"loss {report.loss_widest:.3f} / {report.loss_others:.3f}"
        if report.accuracy:
            text += f"  held out {min(report.accuracy.values()):.1f}-{max(report.accuracy.values()):.1f} %"
        self._bar.update(self._task, completed=report.epoch, total=report.epochs or None, description=text)
        now_s = time.monotonic()
        if not self._console.is_terminal and (
            now_s - self._last_line_s > 10 or report.epoch == report.epochs
        ):
            self._last_line_s = now_s
            self._console.print(
                f"epoch {report.epoch}/{report.epochs or '?'}  {text}  {report.epoch_s:.2f} s",
                highlight=False,
            )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def image_bar(label: str, total: int) -> Progress:
    """A bar over images, with one task."""
    return _bar(label, total, MofNCompleteColumn())


def byte_bar(label: str) -> Progress:
    """A bar over bytes, with one task whose total may come later."""
    return _bar(label, None, DownloadColumn())


def _bar(label: str, total: int | None, count: ProgressColumn) -> Progress:
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        count,
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    bar.add_task(label, total=total)
    return bar
