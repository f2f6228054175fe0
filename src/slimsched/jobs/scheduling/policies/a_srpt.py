"""A-SRPT: shortest predicted remaining time first on a virtual single machine; real jobs follow its order.

Durations are predicted from finished jobs of the same model and demand (their mean), then of the same
demand, then of all. The virtual machine does the predicted GPU-seconds of all jobs, smallest remainder
first; jobs it has finished go first, in the order it finished them, then the others by what is left.
"""

from heapq import heappop, heappush

from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import Policy, Timers

DEFAULT_S = 3600.0
SENSITIVE = 1.5
PATIENCE = 0.5


class ASrpt(Policy):
    """Predicted shortest remaining processing time first, no preemption; sensitive gangs wait a while."""

    reorders = True

    def __init__(self) -> None:
        self._gpus = 1
        self._sums: dict[tuple[str, int], tuple[float, int]] = {}
        self._virtual: list[tuple[float, int, str]] = []
        self._virtual_s = 0.0
        self._done: dict[str, int] = {}
        self._finished = 0

    def begin(self, topology: Topology) -> None:
        """Forget the jobs of before; the virtual machine is as fast as all GPUs together."""
        self._gpus = topology.gpus
        self._virtual.clear()
        self._done.clear()

    def predict_s(self, job: JobState) -> float:
        """Mean service of finished jobs like this one."""
        for like in ((job.job.model, job.gpus), ("", job.gpus), ("", 0)):
            total_s, count = self._sums.get(like, (0.0, 0))
            if count:
                return total_s / count
        return DEFAULT_S

    def admit(self, job: JobState, now_s: float) -> None:
        """Let the virtual machine work until now, then give it the new job."""
        self._advance(now_s)
        job.estimate_s = self.predict_s(job)
        heappush(self._virtual, (job.estimate_s * job.gpus, job.seq, job.id))

    def key(self, job: JobState, now_s: float) -> Key:
        """The virtual machine's order."""
        self._advance(now_s)
        done = self._done.get(job.id)
        if done is not None:
            return (0.0, float(done))
        return (1.0, job.estimate_s * job.gpus)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Sensitive gangs wait for consolidation for a share of their predicted time."""
        patience_s = PATIENCE * job.estimate_s if job.sensitivity > SENSITIVE else 0.0
        return (patience_s, patience_s)

    def finished(self, job: JobState, service_s: float) -> None:
        """Learn from what the job needed."""
        for like in ((job.job.model, job.gpus), ("", job.gpus), ("", 0)):
            total_s, count = self._sums.get(like, (0.0, 0))
            self._sums[like] = (total_s + service_s, count + 1)
        self._done.pop(job.id, None)

    def _advance(self, now_s: float) -> None:
        work = (now_s - self._virtual_s) * self._gpus
        self._virtual_s = now_s
        virtual = self._virtual
        while virtual and work > 0.0:
            left, seq, job_id = heappop(virtual)
            if left > work:
                heappush(virtual, (left - work, seq, job_id))
                return
            work -= left
            self._done[job_id] = self._finished
            self._finished += 1
