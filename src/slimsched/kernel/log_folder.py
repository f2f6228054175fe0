"""A folder of logged runs, one sub-folder per start, with a size limit.

When room is needed, the oldest runs are removed first. The current run is never removed.
"""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from slimsched.kernel.errors import DataError
from slimsched.kernel.log import find_logs

STARTED = "%Y%m%dT%H%M%SZ"


class LogFolder:
    """Makes the folder of a new run, and removes old runs when the total is above the limit."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self.limit_bytes = folder, limit_bytes
        self.run = self._new_run()
        """The folder of the current run."""
        self.make_room()

    def make_room(self) -> None:
        """Remove the oldest runs until the total is within the limit."""
        sizes = {run: _size_bytes(run) for run in self._runs()}
        total_bytes = sum(sizes.values())
        for run in sorted(sizes, key=lambda one: one.name):
            if total_bytes <= self.limit_bytes:
                return
            if run != self.run:
                shutil.rmtree(run, ignore_errors=True)
                total_bytes -= sizes[run]

    def _new_run(self) -> Path:
        """Make the folder of a run that starts now; a second start in the same second gets a number."""
        started = datetime.now(UTC).strftime(STARTED)
        for number in range(1, 1000):
            run = self._folder / (started if number == 1 else f"{started}-{number:03}")
            try:
                run.mkdir(parents=True)
            except FileExistsError:
                if not self._folder.is_dir():
                    break
                continue
            except OSError as error:
                raise DataError(
                    f"cannot write logs to {self._folder}: {error.strerror}; choose another folder"
                ) from None
            return run
        raise DataError(f"cannot write logs to {self._folder}: it is no folder; choose another")

    def _runs(self) -> list[Path]:
        """List the runs: folders named by a start time that hold an event log. Nothing else is touched."""
        return [one for one in self._folder.iterdir() if one.is_dir() and (one == self.run or _is_run(one))]


def _is_run(folder: Path) -> bool:
    try:
        datetime.strptime(folder.name[:16], STARTED).replace(tzinfo=UTC)
        return bool(find_logs(folder))
    except (ValueError, DataError):
        return False


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # it was removed meanwhile
    return total
