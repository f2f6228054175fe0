"""Policies for jobs that may run on fewer or more GPUs: all sizes are chosen anew in rounds.

Sia and our own `elastic` differ in what a GPU is worth to a job; both solve the same knapsack exactly.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import Seconds
from slimsched.jobs.domain import Tier
from slimsched.jobs.policies.dally import ServiceHistory
from slimsched.jobs.scheduler.policy import FOREVER, Policy, Timers
from slimsched.jobs.scheduler.waiting import RUNNING, JobState, Key

# -- Which size each job gets when their sizes must fit together and cost least: a knapsack, solved exactly.


class Options(NamedTuple):
    """Sizes a job may have, ascending from 0, and what each costs."""

    sizes: tuple[int, ...]
    costs: tuple[float, ...]


def cheapest_sizes(jobs: Sequence[Options], gpus: int) -> list[int]:
    """Return a size for each job, together at most `gpus` GPUs; at equal cost the smaller size wins."""
    best = np.zeros(gpus + 1)  # [GPUs handed out so far at most]
    chosen: list[NDArray[np.int64]] = []
    for options in jobs:
        margin = np.full(options.sizes[-1], np.inf)
        tried = np.concatenate((margin, best))[_before(options.sizes, gpus)]  # [option, GPUs]
        tried += np.array(options.costs)[:, None]
        cheapest = tried.argmin(axis=0)
        best = tried[cheapest, np.arange(gpus + 1)]
        chosen.append(np.array(options.sizes)[cheapest])
    left = gpus
    sizes: list[int] = []
    for choice in reversed(chosen):
        sizes.append(int(choice[left]))
        left -= sizes[-1]
    return sizes[::-1]


@lru_cache(maxsize=256)
def _before(sizes: tuple[int, ...], gpus: int) -> NDArray[np.int64]:
    """For each size and each number of GPUs: where the number without the size is, behind the margin."""
    before: NDArray[np.int64] = sizes[-1] + np.arange(gpus + 1)[None, :] - np.array(sizes)[:, None]
    return before


# -- Policies that choose the number of GPUs of all jobs anew in rounds.


class RoundPolicy(Policy):
    """Each minute the cheapest sizes; jobs that got GPUs go first, then in order of arrival."""

    resizes = True
    quantum_s = 60.0

    def __init__(self) -> None:
        self._chosen: set[str] = set()

    def key(self, job: JobState, now_s: float) -> Key:
        """Those that this round gave GPUs go first."""
        return (job.id not in self._chosen, job.job.arrival_s)

    def sizes(self, jobs: list[JobState], gpus: int, now_s: float) -> list[int]:
        """Solve the program of this round."""
        sizes = cheapest_sizes([self.options(job, now_s) for job in jobs], gpus)
        self._chosen = {job.id for job, size in zip(jobs, sizes, strict=True) if size}
        return sizes

    def options(self, job: JobState, now_s: float) -> Options:
        """Sizes a job may have now, 0 included, and what each costs."""
        raise NotImplementedError


# -- Sia: jobs that may run on fewer or more GPUs, all sizes chosen anew in rounds. Not told durations.
#
# After Sia (Jayaram Subramanya et al., SOSP 2023), for one kind of GPU. With s_j(g) the pace of job j on g
# GPUs relative to its smallest size, the sizes minimize
#
#     Σ_j (r_j · s_j(g_j))^p  +  λ · jobs that wait          p = −0.5, λ = 1.1
#
# under the GPUs there are. r_j is 1 for the size a job has and discounts all others by what restarts cost it:
# (age − restarts · c) / (age + c), c seconds each. A job has at most twice the GPUs it has had before. The
# authors solve it as an integer program; for one kind of GPU it is a knapsack.

POWER, WAITING_COST = -0.5, 1.1
"""Sia's p, the power of a size's gain, and what no GPUs cost, in the unit of that."""

SIA_WORST = 3000.0
"""No size costs more than this, however small its pace."""


class Sia(RoundPolicy):
    """Sizes by goodput and fairness; those that got GPUs go first, then in order of arrival."""

    def __init__(self, *, restart_s: Seconds = 60.0) -> None:
        super().__init__()
        self._restart_s = restart_s
        self._largest: dict[str, int] = {}

    def options(self, job: JobState, now_s: float) -> Options:
        """Sizes a job may have now, 0 included, and what each costs."""
        running = job.phase == RUNNING
        if running and now_s - job.since_s < self._restart_s:
            return Options((0, job.gpus), (SIA_WORST, 0.0))
        smallest, slowest = job.sizes[0]
        at_most = max(smallest, 2 * self._largest.get(job.id, 0))
        age_s = now_s - job.submitted_s
        lost_s = job.preemptions * self._restart_s
        keeps = max(0.0, age_s - lost_s) / (age_s + self._restart_s) if age_s >= self._restart_s else 1.0
        sizes, costs = [0], [WAITING_COST]
        for size, pace in job.sizes:
            if size <= at_most:
                gain = pace / slowest * (keeps if running and size != job.gpus else 1.0)
                sizes.append(size)
                costs.append(min(SIA_WORST, gain**POWER) if gain > 0.0 else SIA_WORST)
        return Options(tuple(sizes), tuple(costs))

    def launched(self, job: JobState, tier: Tier, declined_for_s: float, now_s: float) -> None:
        """Remember the most GPUs a job has had."""
        self._largest[job.id] = max(job.gpus, self._largest.get(job.id, 0))

    def finished(self, job: JobState, service_s: float) -> None:
        """Forget a job."""
        self._largest.pop(job.id, None)

    def dropped(self, job: JobState) -> None:
        """Forget a job that was cancelled."""
        self._largest.pop(job.id, None)


# -- Elastic: jobs that may run on fewer or more GPUs, by what each GPU does for those nearly done. Ours.
#
# With s_j(g) the pace of job j on g GPUs and R_j the service still to come, both counted on its smallest
# size, the sizes maximize, once a minute,
#
#     Σ_j k_j · √(s_j(g_j) / R_j)
#
# R_j comes from finished jobs that lasted as long, as in dally: this policy is not told durations either. The
# square root spreads GPUs over more jobs, which use them better. k_j is 1 for the size a job has and 0.9 for
# all others, so that a change is worth its restart; a job that has just started keeps its size for two
# minutes. A job waits for GPUs close together where it would be more than 5 % slower farther apart.

KEPT_S = 120.0
OTHER_SIZE = 0.9
MUCH_SLOWER = 1.05
ELASTIC_WORST = 1e9


class Elastic(RoundPolicy):
    """Sizes by pace and service still to come; those that got GPUs go first, then in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._services = ServiceHistory()

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Hold out for a closer place where the next is much slower; a minute later the size may change."""
        machine, rack, network = job.slow
        rack_s = FOREVER if rack > MUCH_SLOWER * machine else 0.0
        return (rack_s, FOREVER if network > MUCH_SLOWER * rack else rack_s)

    def options(self, job: JobState, now_s: float) -> Options:
        """Sizes a job may have now, 0 included, and what each costs."""
        running = job.phase == RUNNING
        if running and now_s - job.since_s < KEPT_S:
            return Options((0, job.gpus), (ELASTIC_WORST, 0.0))
        slowest = job.sizes[0][1]
        to_come_s = self._services.residual_s(job.service_s(now_s) / slowest)
        sizes, costs = [0], [0.0]
        for size, pace in job.sizes:
            other = OTHER_SIZE if running and size != job.gpus else 1.0
            sizes.append(size)
            costs.append(-other * (pace / slowest / to_come_s) ** 0.5)
        return Options(tuple(sizes), tuple(costs))

    def finished(self, job: JobState, service_s: float) -> None:
        """Remember what a job took on its smallest size."""
        self._services.add(service_s / job.sizes[0][1])
