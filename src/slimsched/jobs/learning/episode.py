"""One simulated window of jobs under an order that explores, and what each of its decisions cost.

A decision gives one waiting job a shift. From then until the job is done it costs

    own delay     = time until it is done − ideal service it still needed
    others' delay = ∫ over its runs of  GPUs held / GPUs of the cluster · jobs waiting  dt

The second is what running now instead of later does to those who wait: in a backlog served at a fixed rate
the two together are the job's share in the sum of all completion times. So every decision has a cost of its
own, and a job gains nothing by pushing ahead of shorter ones.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.jobs.domain.job import Job
from slimsched.jobs.execution.simulated.comparison import JobSetting, build
from slimsched.jobs.scheduling.job_state import JobState
from slimsched.jobs.scheduling.policies.learned_order import SHIFTS, Features, LearnedOrder
from slimsched.jobs.telemetry.runs import JobHistory, histories

Values = NDArray[np.float64]

KEEP_S = 14400.0
"""While exploring, a waiting job keeps its shift for this long: long enough to have an effect."""


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """One shift given to one job; `surprise` is how far it was from the mean of what could be drawn."""

    job_id: str
    at_s: float
    served_s: float
    features: Features
    action: int
    surprise: float
    log_probability: float


class ExploringOrder(LearnedOrder):
    """Draws shifts instead of taking their mean, and remembers its decisions."""

    def __init__(self, weights: Mapping[str, Values], rng: Generator) -> None:
        super().__init__(weights)
        self._rng = rng
        self.decisions: list[Decision] = []
        self._last: dict[str, tuple[float, int, int]] = {}  # job: when, at which stop, which shift

    def shift(self, job: JobState, features: Features, now_s: float) -> float:
        """A drawn shift; the same one while the job waits on, for a few hours."""
        at_s, stops, action = self._last.get(job.id, (0.0, -1, 0))
        if stops == job.preemptions and now_s - at_s < KEEP_S:
            return SHIFTS[action]
        probabilities = self.probabilities(features)
        action = int(np.searchsorted(probabilities.cumsum(), self._rng.random()).clip(0, len(SHIFTS) - 1))
        self._last[job.id] = (now_s, job.preemptions, action)
        self.decisions.append(
            Decision(
                job_id=job.id,
                at_s=now_s,
                served_s=job.served_s,
                features=features,
                action=action,
                surprise=float(SHIFTS[action] - probabilities @ self._shifts),
                log_probability=float(np.log(probabilities[action])),
            )
        )
        return SHIFTS[action]


class Episode(Struct, frozen=True, kw_only=True):
    """The decisions of a window, what each cost, and what only hindsight knows of it."""

    decisions: list[Decision]
    own_s: Values
    others_s: Values
    hindsight: Values


def run_episode(
    jobs: Sequence[Job], setting: JobSetting, weights: Mapping[str, Values], rng: Generator
) -> Episode:
    """Simulate prepared jobs under an exploring order."""
    order = ExploringOrder(weights, rng)
    by_job = histories(build(order, jobs, setting, 0).run())
    decisions = order.decisions
    own_s, others_s = delays_s(decisions, by_job, setting.topology.gpus)
    return Episode(
        decisions=decisions,
        own_s=own_s,
        others_s=others_s,
        hindsight=np.array([_hindsight(decision, by_job[decision.job_id].job) for decision in decisions]),
    )


def delays_s(
    decisions: Sequence[Decision], by_job: Mapping[str, JobHistory], gpus: int
) -> tuple[Values, Values]:
    """Own and others' delay after each decision."""
    times_s, waited_s = _waiting(by_job)
    own_s, others_s = np.empty(len(decisions)), np.empty(len(decisions))
    for i, decision in enumerate(decisions):
        history = by_job[decision.job_id]
        assert history.finished_s is not None
        needed_s = history.job.service_s - decision.served_s
        own_s[i] = max(0.0, history.finished_s - decision.at_s - needed_s)
        runs = [run for run in history.runs if run.start_s >= decision.at_s]
        ends = np.interp([run.end_s for run in runs], times_s, waited_s)
        starts = np.interp([run.start_s for run in runs], times_s, waited_s)
        others_s[i] = history.job.gpus / gpus * float((ends - starts).sum())
    return own_s, others_s


def _waiting(by_job: Mapping[str, JobHistory]) -> tuple[Values, Values]:
    """∫ jobs waiting dt, as corners of a line."""
    changes: list[tuple[float, int]] = []
    for history in by_job.values():
        since_s = history.submitted_s
        for run in history.runs:
            changes += [(since_s, 1), (run.start_s, -1)]
            since_s = run.end_s
    changes.sort()
    times_s = np.array([at_s for at_s, _ in changes])
    count = np.cumsum([change for _, change in changes])
    return times_s, np.concatenate([[0.0], np.cumsum(np.diff(times_s) * count[:-1])])


def _hindsight(decision: Decision, job: Job) -> tuple[float, float]:
    """What the value may know and the order may not: the service left, alone and by its GPUs."""
    left_s = job.service_s - decision.served_s
    return (float(np.log1p(left_s)) / 10.0, float(np.log1p(left_s * job.gpus)) / 12.0)
