"""Sia: jobs that may run on fewer or more GPUs, all sizes chosen anew in rounds. Not told durations.

After Sia (Jayaram Subramanya et al., SOSP 2023), for one kind of GPU. With s_j(g) the pace of job j on g GPUs
relative to its smallest size, the sizes minimize

    Σ_j (r_j · s_j(g_j))^p  +  λ · jobs that wait          p = −0.5, λ = 1.1

under the GPUs there are. r_j is 1 for the size a job has and discounts all others by what restarts cost it:
(age − restarts · c) / (age + c), c seconds each. A job has at most twice the GPUs it has had before. The
authors solve it as an integer program; for one kind of GPU it is a knapsack.
"""

from slimsched.jobs.domain.placement import Tier
from slimsched.jobs.scheduling.job_state import RUNNING, JobState
from slimsched.jobs.scheduling.knapsack import Options
from slimsched.jobs.scheduling.policies.rounds import RoundPolicy
from slimsched.kernel.quantity import Seconds

POWER, WAITING_COST = -0.5, 1.1
"""Sia's p, the power of a size's gain, and what no GPUs cost, in the unit of that."""

WORST = 3000.0
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
            return Options((0, job.gpus), (WORST, 0.0))
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
                costs.append(min(WORST, gain**POWER) if gain > 0.0 else WORST)
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
