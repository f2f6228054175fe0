"""When running jobs may first be stopped for others: times to come, cheap to note and to forget.

Most of these times never come, because the job ends before. So times that are far off lie unsorted in lists,
one list per step of ten minutes, and are sorted only when their step begins.
"""

from heapq import heappop, heappush
from math import inf
from typing import Final

from slimsched.jobs.scheduling.job_state import RUNNING, JobState

STEP_S: Final = 600.0

Ripening = tuple[float, int, JobState, int, int]
"""(when, the job's number, the job, its epoch, the class of waiting jobs it may then be stopped for)."""


class RipeningTimes:
    """The ripening of every running job that is to come next; those of jobs that moved on are dropped."""

    def __init__(self) -> None:
        self._soon: list[Ripening] = []
        """A heap of those before `_sorted_until_s`."""
        self._sorted_until_s = -inf
        self._later: dict[int, list[Ripening]] = {}
        """The others, by step."""
        self._steps: list[int] = []
        """A heap of the keys of `_later`."""

    def add(self, at_s: float, job: JobState, for_class: int) -> None:
        """Note when a running job ripens for a class."""
        entry = (at_s, job.seq, job, job.epoch, for_class)
        if at_s < self._sorted_until_s:
            heappush(self._soon, entry)
        elif at_s < inf:
            step = int(at_s // STEP_S)
            others = self._later.get(step)
            if others is None:
                self._later[step] = [entry]
                heappush(self._steps, step)
            else:
                others.append(entry)

    def due(self, now_s: float) -> list[Ripening]:
        """Take out what has come by now."""
        due: list[Ripening] = []
        soon = self._soon
        while soon and soon[0][0] <= now_s:
            entry = heappop(soon)
            if _holds(entry):
                due.append(entry)
        if now_s >= self._sorted_until_s:
            self._begin_step(now_s, due)
        return due

    def _begin_step(self, now_s: float, due: list[Ripening]) -> None:
        """Sort the times of the step that has begun; add those that have come by now to `due`."""
        present = int(now_s // STEP_S)
        self._sorted_until_s = (present + 1) * STEP_S
        while self._steps and self._steps[0] <= present:
            for entry in self._later.pop(heappop(self._steps)):
                if _holds(entry):
                    if entry[0] <= now_s:
                        due.append(entry)
                    else:
                        heappush(self._soon, entry)


def _holds(entry: Ripening) -> bool:
    """Whether the job still runs as it did when this was noted."""
    job = entry[2]
    return job.epoch == entry[3] and job.phase == RUNNING
