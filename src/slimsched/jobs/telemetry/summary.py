"""What a job scheduler achieved, in one row: a fold over its log."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Tier, gpus_in
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.telemetry.runs import JobHistory


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
    work = _Work(done, sensitivity, save_s=save_s, restore_s=restore_s)
    busy, comm, compute, ideal = work.busy, work.comm, work.compute, work.ideal
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
        excess_comm=(sum(comm) - work.ideal_comm) / compute if compute else 0.0,
        comm_gpu_s=sum(comm),
        goodput=ideal / capacity,
        makespan_bound_s=max(ideal / topology.gpus, longest_s, last_s),
        work_bound_s=ideal / topology.gpus,
        comm_by_tier={tier.name.lower(): comm[tier] / compute if compute else 0.0 for tier in Tier},
        gpu_share_by_tier={tier.name.lower(): busy[tier] / max(sum(busy), 1e-9) for tier in Tier},
        jobs=len(done),
        events=events,
    )


class _Work:
    """GPU-seconds of finished jobs: held and communicated by tier, computed, and the ideal of each."""

    def __init__(
        self, done: Sequence[JobHistory], sensitivity: Sensitivity, *, save_s: float, restore_s: float
    ) -> None:
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
                    computed_s = (
                        run.served_s / sensitivity.pace(job, gpus) * _computing(sensitivity, job, gpus)
                    )
                comm[tier] += gpus * max(0.0, held_s - checkpoint_s - computed_s)
        self.busy, self.comm, self.compute = busy, comm, compute
        self.ideal, self.ideal_comm = ideal, ideal_comm


def _computing(sensitivity: Sensitivity, job: Job, gpus: int) -> float:
    """The share of its time that a gang of N GPUs computes where it is closest together."""
    return sensitivity.model(job).compute_s / sensitivity.ideal_iteration_s(job, gpus)
