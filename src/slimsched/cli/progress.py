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
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from slimsched.models.training.loop import EpochReport


class TrainingProgress:
    """A bar over the epochs, with the losses beside it; plain lines where the output is not a terminal."""

    def __init__(self, epochs: int) -> None:
        self._bar = example_bar("training", epochs)
        self._console, self._task = self._bar.console, self._bar.task_ids[0]
        self._epoch = 0
        self._last_line_s = 0.0

    def advance(self, step: int, steps: int) -> None:
        """Show that a step of an epoch is done."""
        self._bar.update(self._task, completed=self._epoch + step / steps)

    def report(self, report: "EpochReport") -> None:
        """Show that an epoch is done."""
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


def example_bar(label: str, total: int) -> Progress:
    """Return a bar over examples or requests, with one task; hidden where the output is not a terminal."""
    return _bar(label, total, MofNCompleteColumn(), TimeRemainingColumn())


def byte_bar(label: str) -> Progress:
    """Return a bar over bytes, with one task whose total may come later."""
    return _bar(label, None, DownloadColumn(), TimeRemainingColumn())


def count_bar(label: str, total: int, *, completed: int = 0, quiet: bool = False) -> Progress:
    """Return a bar over steps, with one task; it disappears at the end, and is not shown where `quiet`."""
    columns = MofNCompleteColumn(), TimeElapsedColumn()
    return _bar(label, total, *columns, completed=completed, hidden=quiet, transient=True)


def cell_bar(label: str, total: int) -> Progress:
    """Return a bar over the cells of a measurement, with one task."""
    columns = MofNCompleteColumn(), TimeRemainingColumn()
    return _bar(label, total, *columns, text="{task.description:32}", hidden=False)


def _bar(
    label: str,
    total: int | None,
    *counts: ProgressColumn,
    text: str = "{task.description}",
    completed: int = 0,
    hidden: bool | None = None,
    transient: bool = False,
) -> Progress:
    """Return a bar with one task; unless told otherwise it is hidden where the output is not a terminal."""
    console = Console(stderr=True)
    disable = not console.is_terminal if hidden is None else hidden
    columns = TextColumn(text), BarColumn(), *counts
    bar = Progress(*columns, console=console, disable=disable, transient=transient)
    bar.add_task(label, total=total, completed=completed)
    return bar
