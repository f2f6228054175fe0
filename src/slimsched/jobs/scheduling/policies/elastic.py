"""Elastic: jobs that may run on fewer or more GPUs, by what each GPU does for those nearly done. Ours.

With s_j(g) the pace of job j on g GPUs and R_j the service still to come, both counted on its smallest size,
the sizes maximize, once a minute,

    Σ_j k_j · √(s_j(g_j) / R_j)

R_j comes from finished jobs that lasted as long, as in dally: this policy is not told durations either. The
square root spreads GPUs over more jobs, which use them better. k_j is 1 for the size a job has and 0.9 for
all others, so that a change is worth its restart; a job that has just started keeps its size for two minutes.
A job waits for GPUs close together where it would be more than 5 % slower farther apart.
"""

from slimsched.jobs.scheduling.job_state import RUNNING, JobState
from slimsched.jobs.scheduling.knapsack import Options
from slimsched.jobs.scheduling.policies.rounds import RoundPolicy
from slimsched.jobs.scheduling.policy import FOREVER, Timers
from slimsched.jobs.scheduling.service_history import ServiceHistory

KEPT_S = 120.0
OTHER_SIZE = 0.9
MUCH_SLOWER = 1.05
WORST = 1e9


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
            return Options((0, job.gpus), (WORST, 0.0))
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
