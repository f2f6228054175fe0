"""Tiresias: discretised two-dimensional least attained service, and consolidation of skewed models only.

Our reading of its published rules: jobs move down queues as they attain GPU-seconds; a job that has waited
long compared with what it has run is promoted; models with one dominant tensor are placed as close together
as they can be, however long that takes, the others anywhere.
"""

from bisect import bisect_right
from typing import ClassVar

from slimsched.jobs.scheduling.job_state import JobState, Key
from slimsched.jobs.scheduling.policy import FOREVER, Policy, Timers

QUEUE_LIMITS_GPU_S = (3250.0, 7200.0)
"""Those of the authors' code, which names a third limit but makes three queues."""
SKEWED = frozenset({"lm", "transformer", "bert", "ncf", "vgg11", "vgg16", "vgg19", "alexnet"})
"""Models whose parameters sit mostly in one tensor (embeddings, large fully connected layers)."""


class Tiresias(Policy):
    """Least attained GPU-service first, in queues; skewed models are consolidated."""

    preempts = True
    reorders = True
    promote_after: ClassVar[float] = 8.0
    """A job that has waited this many times as long as it ran goes back to the first queue."""

    def queue(self, job: JobState, now_s: float) -> int:
        """Which queue a job is in."""
        run_s = job.run_s(now_s)
        waited_s = now_s - job.since_s if not job.placement else 0.0
        if run_s > 0.0 and waited_s > self.promote_after * run_s:
            return 0
        return bisect_right(QUEUE_LIMITS_GPU_S, job.gpus * run_s)

    def key(self, job: JobState, now_s: float) -> Key:
        """By queue, then by arrival."""
        return (float(self.queue(job, now_s)), job.job.arrival_s)

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Skewed models hold out for the closest tier, the others take what there is."""
        return (FOREVER, FOREVER) if job.job.model in SKEWED else (0.0, 0.0)

    def may_evict(self, running: JobState, waiting: JobState, now_s: float) -> bool:
        """Stop jobs of lower queues."""
        return self.queue(running, now_s) > waiting.key[0]

    def rank(self, running: JobState, now_s: float) -> float:
        """The lowest queue goes first, and there the latest arrival."""
        return self.queue(running, now_s) * 1e12 + running.job.arrival_s
