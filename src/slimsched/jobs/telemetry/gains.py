"""Who gains and who loses when one schedule takes the place of another: by user and by size of gang."""

from collections.abc import Callable, Iterable, Mapping
from statistics import fmean

from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.telemetry.runs import JobHistory

SIZES = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64), (65, 10**9))


class Gain(Struct, frozen=True, kw_only=True):
    """A group of jobs under two schedules: mean wait and mean completion time, before and after."""

    group: str
    jobs: int
    gpu_h: float
    wait_before_s: float
    wait_after_s: float
    jct_before_s: float
    jct_after_s: float

    @property
    def change(self) -> float:
        """Relative change of the mean completion time; below 0 is a gain."""
        return self.jct_after_s / self.jct_before_s - 1.0 if self.jct_before_s else 0.0


Pair = tuple[Mapping[str, JobHistory], Mapping[str, JobHistory]]
"""The same jobs under the schedule of before and the one of after."""


def size_of(job: Job) -> str:
    """Name the class of sizes a gang falls into."""
    low, high = next(bounds for bounds in SIZES if job.gpus <= bounds[1])
    if high == 10**9:
        return f"{low} and more GPUs"
    return f"{low} GPU{'s' * (low > 1)}" if low == high else f"{low}–{high} GPUs"


def gains(pairs: Iterable[Pair], group_of: Callable[[Job], str]) -> list[Gain]:
    """Return each group's gain, averaged over pairs of runs of the same jobs; the largest group first."""
    groups: dict[str, list[tuple[JobHistory, JobHistory]]] = {}
    runs = 0
    for before, after in pairs:
        runs += 1
        for job_id, history in before.items():
            groups.setdefault(group_of(history.job), []).append((history, after[job_id]))
    made = [_gain(group, both, runs) for group, both in groups.items()]
    return sorted(made, key=lambda gain: (-gain.gpu_h, gain.group))


def _gain(group: str, both: list[tuple[JobHistory, JobHistory]], runs: int) -> Gain:
    return Gain(
        group=group,
        jobs=len(both) // runs,
        gpu_h=sum(before.job.gpus * before.job.service_s for before, _ in both) / runs / 3600.0,
        wait_before_s=fmean(before.wait_s for before, _ in both),
        wait_after_s=fmean(after.wait_s for _, after in both),
        jct_before_s=fmean(before.jct_s for before, _ in both),
        jct_after_s=fmean(after.jct_s for _, after in both),
    )
