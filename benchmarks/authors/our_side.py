"""Our side of the comparison with authors' code: the same jobs, and our policies without the costs they lack.

Most published simulators count GPUs, stop jobs for nothing and may do so at any event. So do the policies
here: they are ours with neither checkpoint costs nor a minimum run time nor hysteresis, on a flat pool.
"""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from slimsched.jobs.domain import Job, Topology
from slimsched.jobs.policies.baselines import FifoPolicy, FitFirst, MaxMin, Srsf, Srtf, Tiresias
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.simulated.cluster import Checkpoint
from slimsched.jobs.simulated.comparison import JobSetting, build
from slimsched.jobs.telemetry import histories
from slimsched.jobs.traces.jobs import locate_trace, read_job_trace
from slimsched.jobs.traces.models import window

FREE = Checkpoint(save_s=0.0, restore_s=0.0)


class InstantSrtf(Srtf):
    """SRTF that preempts at once and for nothing."""

    min_run_s = 0.0
    quantum_s = 60.0
    hysteresis = 1.0


class InstantSrsf(Srsf):
    """SRSF that preempts at once and for nothing."""

    min_run_s = 0.0
    quantum_s = 60.0
    hysteresis = 1.0


class InstantTiresias(Tiresias):
    """Tiresias that preempts at once and for nothing, and never promotes a starving job (`dlas-gpu`)."""

    min_run_s = 0.0
    quantum_s = 60.0
    reorder_s = 60.0
    promote_after = float("inf")


INSTANT: dict[str, type[Policy]] = {
    "fifo": FifoPolicy,
    "fit-first": FitFirst,
    "srtf": InstantSrtf,
    "srsf": InstantSrsf,
    "tiresias": InstantTiresias,
    "max-min": MaxMin,
}


class Figures(NamedTuple):
    """What a schedule came to."""

    jct_mean_s: float
    makespan_s: float
    wait_mean_s: float


def figures(jct_s: dict[str, float], jobs: Sequence[Job]) -> Figures:
    """Figures of a schedule given by each job's completion time."""
    missing = [job.id for job in jobs if job.id not in jct_s]
    if missing:
        raise SystemExit(f"{len(missing)} jobs did not finish, the first is {missing[0]}")
    waits_s = [jct_s[job.id] - job.service_s for job in jobs]
    last_s = max(job.arrival_s + jct_s[job.id] for job in jobs)
    return Figures(
        float(np.mean([jct_s[job.id] for job in jobs])), last_s - jobs[0].arrival_s, float(np.mean(waits_s))
    )


def take(trace: str, data: Path | None, count: int, seed: int, sizes: Container[int]) -> list[Job]:
    """A window of a trace, without models, in milliseconds of which no two are likely to be equal.

    Traces count whole seconds, so many events fall together; simulators handle those one by one or all at
    once, which is no matter of policy.
    """
    rng = np.random.default_rng(seed)
    jobs = window(read_job_trace(locate_trace(trace, data)), count, rng)
    fitting = [job for job in jobs if job.gpus in sizes]
    first_s = fitting[0].arrival_s
    fractions_s = rng.integers(1, 1000, size=(len(fitting), 2)) / 1000
    fractions_s[0, 0] = 0.0
    return [
        msgspec.structs.replace(
            job,
            id=str(number),
            arrival_s=round(int(job.arrival_s - first_s) + arrival_s, 3),
            service_s=round(int(job.service_s) + service_s, 3),
            model="",
            tenant="",
        )
        for number, (job, (arrival_s, service_s)) in enumerate(
            zip(fitting, fractions_s.tolist(), strict=True)
        )
    ]


def in_whole_seconds(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs in whole seconds, for simulators that have times of their own in seconds."""
    return [
        msgspec.structs.replace(
            job, arrival_s=float(int(job.arrival_s)), service_s=max(1.0, float(int(job.service_s)))
        )
        for job in jobs
    ]


def simulate(policy: Policy, jobs: Sequence[Job], gpus: int) -> dict[str, float]:
    """Completion times under a policy of ours on a flat pool, with checkpoints that cost nothing."""
    pool = Topology.pool(gpus)
    setting = JobSetting(machines=pool.machines, cluster=pool.name, checkpoint=FREE)
    done = histories(build(policy, jobs, setting, 0).run())
    return {job_id: history.jct_s for job_id, history in done.items()}
