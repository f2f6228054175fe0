"""Runs policies on the same jobs, over several seeds, and puts the rows side by side."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from msgspec import Struct
from scipy import stats

from slimsched.jobs.domain.fabric import fabric_named
from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.topology import Machine, Topology
from slimsched.jobs.execution.simulated.cluster import SimulatedJobs
from slimsched.jobs.execution.simulated.failure import Checkpoint, Failure
from slimsched.jobs.scheduling.demand import check_demand
from slimsched.jobs.scheduling.policies import PolicyMaker, policy_named
from slimsched.jobs.scheduling.scheduler import JobScheduler
from slimsched.jobs.scheduling.sensitivity import Sensitivity
from slimsched.jobs.telemetry.log import JobLog
from slimsched.jobs.telemetry.runs import JobHistory, histories
from slimsched.jobs.telemetry.summary import JobSummary, summarize
from slimsched.jobs.traces.known_models import MEASURED, TRAINING_MODELS
from slimsched.jobs.traces.window import assign_models, rearrange, window
from slimsched.kernel.collector import collector_paused

BY_SEED = ("jct_mean_s", "makespan_s", "comm_overhead")


class JobSetting(Struct, frozen=True, kw_only=True):
    """All that a simulation depends on, besides the trace, the policy and the seed."""

    machines: tuple[Machine, ...]
    cluster: str
    network: str = "congested"
    arrivals: str = "trace"
    load: float = 1.0
    jobs: int = 0
    models: tuple[str, ...] = MEASURED
    checkpoint: Checkpoint = Checkpoint()
    failures_per_machine_day: float = 0.0
    repair_s: float = 3600.0
    quotas: dict[str, int] = {}

    @property
    def topology(self) -> Topology:
        """The machines as a cluster."""
        return Topology(self.machines, name=self.cluster)


class JobRow(Struct, frozen=True, kw_only=True):
    """A policy in a setting: means over seeds, and the half width of the 95 % interval of each mean.

    `by_seed` has the main figures seed by seed, for paired comparisons between policies.
    """

    network: str
    arrivals: str
    seeds: int
    summary: JobSummary
    ci95: dict[str, float]
    by_seed: dict[str, list[float]]


def prepare(trace: Sequence[Job], setting: JobSetting, seed: int) -> list[Job]:
    """The jobs of one seed: a window of the trace, its arrivals, its models."""
    rng = np.random.default_rng(seed)
    count = setting.jobs or len(trace)
    topology = setting.topology
    jobs = assign_models(window(trace, count, rng), rng, setting.models)
    for job in jobs:
        check_demand(job, topology, setting.quotas)
    return rearrange(jobs, setting.arrivals, rng=rng, gpus=topology.gpus, load=setting.load)


def failures(setting: JobSetting, jobs: Sequence[Job], seed: int) -> list[Failure]:
    """Machine failures of one seed: a Poisson process a machine, over the time the jobs could take."""
    if setting.failures_per_machine_day <= 0.0:
        return []
    rng = np.random.default_rng([seed, 1])
    gpus = sum(machine.gpus for machine in setting.machines)
    horizon_s = max(job.arrival_s for job in jobs) + 2 * sum(job.gpus * job.service_s for job in jobs) / gpus
    horizon_s += 2 * max(job.service_s for job in jobs)
    found = []
    for machine in setting.machines:
        at_s = 0.0
        while True:
            at_s += float(rng.exponential(86400.0 / setting.failures_per_machine_day))
            if at_s > horizon_s:
                break
            found.append(Failure(machine=machine.name, at_s=at_s, repair_s=setting.repair_s))
            at_s += setting.repair_s
    return found


def build(
    policy: str, jobs: Sequence[Job], setting: JobSetting, seed: int, make: PolicyMaker = policy_named
) -> SimulatedJobs:
    """A simulation ready to run."""
    topology = setting.topology
    fabric = fabric_named(setting.network)
    sensitivity = Sensitivity(topology=topology, fabric=fabric, models=TRAINING_MODELS)
    scheduler = JobScheduler(
        topology=topology, policy=make(policy), sensitivity=sensitivity, quotas=setting.quotas
    )
    return SimulatedJobs(
        scheduler=scheduler,
        sensitivity=sensitivity,
        jobs=jobs,
        checkpoint=setting.checkpoint,
        failures=failures(setting, jobs, seed),
    )


def simulate(
    policy: str,
    jobs: Sequence[Job],
    setting: JobSetting,
    seed: int,
    progress: Callable[[int], None] | None = None,
    make: PolicyMaker = policy_named,
) -> tuple[JobSummary, dict[str, JobHistory], JobLog]:
    """Run one policy on prepared jobs."""
    simulation = build(policy, jobs, setting, seed, make)
    with collector_paused():
        begun_s = time.perf_counter()
        log = simulation.run(progress=progress)
        wall_s = time.perf_counter() - begun_s
    found = histories(log)
    summary = summarize(
        found,
        policy=policy,
        sensitivity=simulation.sensitivity,
        save_s=setting.checkpoint.save_s,
        restore_s=setting.checkpoint.restore_s,
        events=simulation.events,
        wall_s=wall_s,
    )
    return summary, found, log


def compare(
    trace: Sequence[Job],
    policies: Sequence[str],
    settings: Sequence[JobSetting],
    *,
    seed: int = 0,
    seeds: int = 1,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
    make: PolicyMaker = policy_named,
) -> list[JobRow]:
    """Every policy in every setting over several seeds; `make` must be picklable."""
    for name in policies:
        make(name)
    tasks = [(name, setting, seed + i) for setting in settings for name in policies for i in range(seeds)]
    prepared = {
        (id(setting), seed + i): prepare(trace, setting, seed + i)
        for setting in settings
        for i in range(seeds)
    }
    rows: dict[tuple[int, str], list[JobSummary]] = {}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        arguments = [(name, prepared[id(setting), s], setting, s, make) for name, setting, s in tasks]
        for (name, setting, _), summary in zip(tasks, pool.map(_summary, arguments), strict=True):
            rows.setdefault((id(setting), name), []).append(summary)
            if progress is not None:
                progress(name)
    return [
        average(rows[id(setting), name], network=setting.network, arrivals=setting.arrivals)
        for setting in settings
        for name in policies
    ]


def _summary(arguments: tuple[str, list[Job], JobSetting, int, PolicyMaker]) -> JobSummary:
    policy, jobs, setting, seed, make = arguments
    return simulate(policy, jobs, setting, seed, make=make)[0]


def average(summaries: Sequence[JobSummary], *, network: str, arrivals: str) -> JobRow:
    """Means over seeds and their 95 % intervals (Student's t)."""
    count = len(summaries)
    factor = float(stats.t.ppf(0.975, count - 1)) / count**0.5 if count > 1 else 0.0
    means: dict[str, object] = {}
    ci95: dict[str, float] = {}
    for field in JobSummary.__struct_fields__:
        values = [getattr(summary, field) for summary in summaries]
        if isinstance(values[0], dict):
            means[field] = {key: float(np.mean([value[key] for value in values])) for key in values[0]}
        elif isinstance(values[0], str):
            means[field] = values[0]
        else:
            means[field] = float(np.mean(values))
            ci95[field] = factor * float(np.std(values, ddof=1)) if count > 1 else 0.0
    return JobRow(
        network=network,
        arrivals=arrivals,
        seeds=count,
        summary=JobSummary(**means),  # type: ignore[arg-type]
        ci95=ci95,
        by_seed={name: [getattr(summary, name) for summary in summaries] for name in BY_SEED},
    )
