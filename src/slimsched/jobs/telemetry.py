"""The log of a run of jobs, folded: entries become stretches of time, and these the figures of a row."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.log import Observer
from slimsched.jobs.domain import Job, Placement, Tier, Topology, gpus_in
from slimsched.jobs.scheduler import messages
from slimsched.jobs.scheduler.messages import LiveCommand, LiveEvent
from slimsched.jobs.scheduler.network import Sensitivity

# -- The entries of a job run: when, what the scheduler was told, and what it asked for.
#
# A simulation keeps them in memory; a log on disk holds the same.

SCHEDULER_NAME = "jobs"
"""The name of the one machine in the log of a job run."""

JobEntry = tuple[float, LiveEvent, Sequence[LiveCommand]]


def pass_on(entries: Iterable[JobEntry], observer: Observer) -> None:
    """Show entries to an observer, such as the writer of a log."""
    for now_s, event, commands in entries:
        observer.observe(now_s, SCHEDULER_NAME, event, commands)


# -- Folds the entries of a job run into runs: the stretches of time for which a gang held its GPUs.


class JobRun(Struct, frozen=True, kw_only=True):
    """One stretch from start to stop; `served_s` is the ideal service it brought."""

    placement: Placement
    start_s: float
    end_s: float
    served_s: float
    resumed: bool
    interrupted: bool


class JobHistory(Struct, kw_only=True):
    """All that happened to one job."""

    job: Job
    submitted_s: float
    runs: list[JobRun]
    finished_s: float | None = None
    preemptions: int = 0
    served_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """Job completion time; only for a finished job."""
        assert self.finished_s is not None
        return self.finished_s - self.submitted_s

    @property
    def wait_s(self) -> float:
        """Time without GPUs; only for a finished job."""
        return self.jct_s - sum(run.end_s - run.start_s for run in self.runs)


def histories(entries: Iterable[JobEntry]) -> dict[str, JobHistory]:
    """Tell what happened to every job, by id, in order of submission."""
    fold = _Histories()
    for now_s, event, commands in entries:
        fold.told(event, now_s)
        for command in commands:
            if isinstance(command, messages.StartJob):
                fold.started[command.job_id] = (command.placement, now_s)
            elif isinstance(command, messages.PreemptJob):
                fold.jobs[command.job_id].preemptions += 1
    for job_id, at_s in fold.lost.items():
        fold.finish(job_id, at_s)
    return fold.jobs


class _Histories:
    """The histories so far. `lost` are jobs that ran when a controller started afresh, and since when:
    a job that is then found neither running nor waiting had ended by that time."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobHistory] = {}
        self.started: dict[str, tuple[Placement, float]] = {}
        self.lost: dict[str, float] = {}

    def told(self, event: LiveEvent, now_s: float) -> None:
        """Take one event in."""
        if isinstance(event, messages.JobSubmitted):
            self._known(event.job, now_s)
            if self.lost and self.lost.pop(event.job.id, None) is not None:  # it waits again
                self._stop(event.job.id, now_s, event.served_s, interrupted=True)
        elif isinstance(event, messages.JobFinished):
            if event.job_id in self.jobs:
                self.finish(event.job_id, now_s)
        elif isinstance(event, messages.JobPreempted):
            self._stop(event.job_id, now_s, event.served_s, interrupted=True)
        elif isinstance(event, messages.JobFoundRunning):
            self._known(event.job, now_s)
            self.lost.pop(event.job.id, None)
            _, since_s = self.started.get(event.job.id, ((), now_s))
            self.started[event.job.id] = (event.placement, since_s)
        elif isinstance(event, messages.StartFailed):
            self.started.pop(event.job_id, None)
        elif isinstance(event, messages.Rebuilt):
            self.lost |= dict.fromkeys(self.started, now_s)

    def finish(self, job_id: str, now_s: float) -> None:
        """A job is done."""
        self._stop(job_id, now_s, self.jobs[job_id].job.service_s, interrupted=False)
        self.jobs[job_id].finished_s = now_s

    def _known(self, job: Job, now_s: float) -> None:
        if job.id not in self.jobs:
            self.jobs[job.id] = JobHistory(job=job, submitted_s=now_s, runs=[])

    def _stop(self, job_id: str, now_s: float, served_s: float, *, interrupted: bool) -> None:
        history = self.jobs[job_id]
        if job_id in self.started:
            placement, start_s = self.started.pop(job_id)
            history.runs.append(
                JobRun(
                    placement=placement,
                    start_s=start_s,
                    end_s=now_s,
                    served_s=served_s - history.served_s,
                    resumed=bool(history.runs),
                    interrupted=interrupted,
                )
            )
        history.served_s = served_s


# -- What a job scheduler achieved, in one row: a fold over its log.


class JobSummary(Struct, frozen=True, kw_only=True):
    """One policy on one workload.

    `comm_overhead` is communication not hidden by computing, as a share of computing, in GPU-seconds;
    `excess_comm` is the part of it that the most consolidated placements would have avoided;
    `comm_gpu_s` is the same communication in GPU-seconds.
    `utilization` counts GPUs held, `goodput` counts ideal work done. The makespan can be no shorter than
    `makespan_bound_s`, the larger of total ideal GPU-seconds over GPUs and the longest job.
    """

    policy: str
    jct_mean_s: float
    jct_p50_s: float
    jct_p99_s: float
    makespan_s: float
    wait_mean_s: float
    wait_p99_s: float
    comm_overhead: float
    preemptions: float
    utilization: float
    events_per_wall_s: float
    excess_comm: float
    comm_gpu_s: float
    goodput: float
    makespan_bound_s: float
    work_bound_s: float
    comm_by_tier: dict[str, float]
    gpu_share_by_tier: dict[str, float]
    jobs: float
    events: float


def summarize(
    histories: Mapping[str, JobHistory],
    *,
    policy: str,
    sensitivity: Sensitivity,
    save_s: float,
    restore_s: float,
    events: int,
    wall_s: float,
) -> JobSummary:
    """Fold the histories of finished jobs into one row."""
    done = [history for history in histories.values() if history.finished_s is not None]
    topology = sensitivity.topology
    jct_s = np.array([history.jct_s for history in done])
    wait_s = np.array([history.wait_s for history in done])
    first_s = min(history.submitted_s for history in done)
    makespan_s = max(history.finished_s or 0.0 for history in done) - first_s
    busy, comm, compute, ideal, ideal_comm = _gpu_s(done, sensitivity, save_s, restore_s)
    longest_s = max(history.job.service_s for history in done)
    last_s = max(history.submitted_s + history.job.service_s for history in done) - first_s
    capacity = topology.gpus * makespan_s if makespan_s > 0 else 1.0
    return JobSummary(
        policy=policy,
        jct_mean_s=float(jct_s.mean()),
        jct_p50_s=float(np.percentile(jct_s, 50)),
        jct_p99_s=float(np.percentile(jct_s, 99)),
        makespan_s=makespan_s,
        wait_mean_s=float(wait_s.mean()),
        wait_p99_s=float(np.percentile(wait_s, 99)),
        comm_overhead=sum(comm) / compute if compute else 0.0,
        preemptions=sum(history.preemptions for history in done),
        utilization=sum(busy) / capacity,
        events_per_wall_s=events / wall_s if wall_s > 0 else 0.0,
        excess_comm=(sum(comm) - ideal_comm) / compute if compute else 0.0,
        comm_gpu_s=sum(comm),
        goodput=ideal / capacity,
        makespan_bound_s=max(ideal / topology.gpus, longest_s, last_s),
        work_bound_s=ideal / topology.gpus,
        comm_by_tier={tier.name.lower(): comm[tier] / compute if compute else 0.0 for tier in Tier},
        gpu_share_by_tier={tier.name.lower(): busy[tier] / max(sum(busy), 1e-9) for tier in Tier},
        jobs=len(done),
        events=events,
    )


def _gpu_s(
    done: Sequence[JobHistory], sensitivity: Sensitivity, save_s: float, restore_s: float
) -> tuple[list[float], list[float], float, float, float]:
    """GPU-seconds that finished jobs held and communicated, each by tier, and computed.

    The last two are what all would have held and communicated where they are closest together.
    """
    busy, comm = [0.0] * len(Tier), [0.0] * len(Tier)
    compute = ideal = ideal_comm = 0.0
    for history in done:
        job = history.job
        share = _computing(sensitivity, job, job.gpus)
        compute += job.gpus * job.service_s * share
        ideal += job.gpus * job.service_s
        ideal_comm += job.gpus * job.service_s * (1.0 - share)
        for run in history.runs:
            tier = sensitivity.topology.tier(run.placement)
            gpus = gpus_in(run.placement)
            held_s = run.end_s - run.start_s
            busy[tier] += gpus * held_s
            checkpoint_s = restore_s * run.resumed + save_s * run.interrupted
            computed_s = run.served_s * share
            if gpus != job.gpus:
                computed_s = run.served_s / sensitivity.pace(job, gpus) * _computing(sensitivity, job, gpus)
            comm[tier] += gpus * max(0.0, held_s - checkpoint_s - computed_s)
    return busy, comm, compute, ideal, ideal_comm


def _computing(sensitivity: Sensitivity, job: Job, gpus: int) -> float:
    """The share of its time that a gang of N GPUs computes where it is closest together."""
    return sensitivity.model(job).compute_s / sensitivity.ideal_iteration_s(job, gpus)


# -- What pictures of job schedules need: completion times, and how full the racks were over time.

BINS = 300


def job_arrays(runs: Mapping[str, Mapping[str, JobHistory]], topology: Topology) -> dict[str, NDArray[Any]]:
    """Return completion times and rack occupancy of each policy, by row number."""
    arrays: dict[str, NDArray[Any]] = {}
    for row, histories in enumerate(runs.values()):
        jct_s = [history.jct_s for history in histories.values() if history.finished_s is not None]
        edges_s, held = _rack_occupancy(histories, topology)
        arrays[f"{row}/jct_s"] = np.sort(np.array(jct_s, dtype=np.float64))
        arrays[f"{row}/edges_s"] = edges_s
        arrays[f"{row}/held"] = held.astype(np.float32)
    return arrays


def _rack_occupancy(
    histories: Mapping[str, JobHistory], topology: Topology
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges of the time bins in seconds, and the share of each rack's GPUs held (racks, bins)."""
    end_s = max((run.end_s for history in histories.values() for run in history.runs), default=1.0)
    edges_s = np.linspace(0.0, end_s, BINS + 1)
    change = np.zeros((len(topology.racks), BINS + 1))
    for history in histories.values():
        for run in history.runs:
            first, last = np.searchsorted(edges_s, (run.start_s, run.end_s), side="right") - 1
            for name, gpus in run.placement:
                rack = topology.rack_of_name[name]
                change[rack, first] += gpus
                change[rack, min(int(last), BINS)] -= gpus
    return edges_s, np.cumsum(change, axis=1)[:, :BINS] / np.array(topology.rack_gpus)[:, None]
