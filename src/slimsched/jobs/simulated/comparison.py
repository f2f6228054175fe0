"""Runs policies on the same jobs, over several seeds, and puts the rows side by side."""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from msgspec import Struct, field

from slimsched.core.clock import collector_paused
from slimsched.core.statistics import mean_of
from slimsched.jobs.domain import Job, Machine, Topology, TrainingModel, fabric_named
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.waiting import check_demand
from slimsched.jobs.setting import POLICIES, SchedulerSetting
from slimsched.jobs.simulated.cluster import Checkpoint, Failure, Sharing, SimulatedJobs
from slimsched.jobs.telemetry import JobEntry, JobHistory, JobSummary, histories, summarize
from slimsched.jobs.traces.models import MEASURED, TRAINING_MODELS, assign_models, rearrange, window

BY_SEED = ("jct_mean_s", "makespan_s", "comm_overhead")


class JobSetting(Struct, frozen=True, kw_only=True):
    """All that a simulation depends on, besides the trace, the policy and the seed."""

    machines: tuple[Machine, ...]
    cluster: str
    network: str = "congested"
    sharing: Sharing = "fair"
    arrivals: str = "trace"
    load: float = 1.0
    jobs: int = 0
    models: tuple[str, ...] = MEASURED
    known_models: dict[str, TrainingModel] = field(default_factory=lambda: TRAINING_MODELS)
    checkpoint: Checkpoint = Checkpoint()
    failures_per_machine_day: float = 0.0
    repair_s: float = 3600.0
    quotas: dict[str, int] = {}

    @property
    def topology(self) -> Topology:
        """The machines as a cluster."""
        return Topology(self.machines, name=self.cluster)

    def scheduler_setting(self, policy: str) -> SchedulerSetting:
        """The part of this setting that the scheduler depends on."""
        return SchedulerSetting(
            engine="simulated",
            policy=policy,
            cluster=self.cluster,
            machines=self.machines,
            fabric=fabric_named(self.network),
            models=self.known_models,
            quotas=self.quotas,
        )


class JobRow(Struct, frozen=True, kw_only=True):
    """A policy in a setting: means over seeds, and the half width of the 95 % interval of each mean.

    `by_seed` has the main figures seed by seed, for paired comparisons between policies. `told_durations`
    says whether the policy knows how long jobs take, which a real cluster cannot tell it.
    """

    network: str
    arrivals: str
    seeds: int
    told_durations: bool
    summary: JobSummary
    ci95: dict[str, float]
    by_seed: dict[str, list[float]]


def prepare(trace: Sequence[Job], setting: JobSetting, seed: int) -> list[Job]:
    """The jobs of one seed: a window of the trace, its arrivals, its models."""
    rng = np.random.default_rng(seed)
    count = setting.jobs or len(trace)
    topology = setting.topology
    jobs = assign_models(window(trace, count, rng), rng, setting.models, setting.known_models)
    for job in jobs:
        check_demand(job, topology, setting.quotas)
    return rearrange(jobs, setting.arrivals, rng=rng, gpus=topology.gpus, load=setting.load)


def failures(setting: JobSetting, jobs: Sequence[Job], seed: int) -> list[Failure]:
    """Machine failures of one seed: a Poisson process per machine, over the time the jobs could take."""
    if setting.failures_per_machine_day <= 0.0:
        return []
    rng = np.random.default_rng([seed, 1])
    gpus = sum(machine.gpus for machine in setting.machines)
    horizon_s = max(job.arrival_s for job in jobs) + 2 * sum(job.gpus * job.service_s for job in jobs) / gpus
    horizon_s += 2 * max(job.service_s for job in jobs)
    failed: list[Failure] = []
    for machine in setting.machines:
        at_s = 0.0
        while True:
            at_s += float(rng.exponential(86400.0 / setting.failures_per_machine_day))
            if at_s > horizon_s:
                break
            failed.append(Failure(machine=machine.name, at_s=at_s, repair_s=setting.repair_s))
            at_s += setting.repair_s
    return failed


def build(policy: str | Policy, jobs: Sequence[Job], setting: JobSetting, seed: int) -> SimulatedJobs:
    """Make a simulation ready to run, under a policy of the table or one of your own."""
    made = POLICIES.make(policy) if isinstance(policy, str) else policy
    scheduler_setting = setting.scheduler_setting(str(policy))
    sensitivity = scheduler_setting.sensitivity()
    return SimulatedJobs(
        scheduler=scheduler_setting.scheduler(sensitivity, made),
        sensitivity=sensitivity,
        jobs=jobs,
        checkpoint=setting.checkpoint,
        failures=failures(setting, jobs, seed),
        sharing=setting.sharing,
    )


def simulate(
    policy: str,
    jobs: Sequence[Job],
    setting: JobSetting,
    seed: int,
    progress: Callable[[int], None] | None = None,
    *,
    counted: Collection[str] | None = None,
) -> tuple[JobSummary, dict[str, JobHistory], list[JobEntry]]:
    """Run one policy on prepared jobs; returns its figures, what happened to each job, and the log.

    Where only some jobs are `counted`, the others run too, but figures and histories leave them out.
    """
    simulation = build(policy, jobs, setting, seed)
    with collector_paused():
        begun_s = time.perf_counter()
        log = simulation.run(progress=progress)
        wall_s = time.perf_counter() - begun_s
        by_job = histories(log)
        if counted is not None:
            by_job = {job_id: by_job[job_id] for job_id in by_job if job_id in counted}
        summary = summarize(
            by_job,
            policy=policy,
            sensitivity=simulation.sensitivity,
            save_s=setting.checkpoint.save_s,
            restore_s=setting.checkpoint.restore_s,
            events=len(log),
            wall_s=wall_s,
        )
    return summary, by_job, log


def compare(
    trace: Sequence[Job],
    policies: Sequence[str],
    settings: Sequence[JobSetting],
    *,
    seed: int = 0,
    seeds: int = 1,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
) -> list[JobRow]:
    """Run every policy in every setting over several seeds; one row per setting and policy."""
    for name in policies:
        POLICIES.make(name)
    every_seed = range(seed, seed + seeds)
    tasks = [
        (name, prepared, setting, number)
        for setting in settings
        for number, prepared in [(number, prepare(trace, setting, number)) for number in every_seed]
        for name in policies
    ]
    summaries: dict[tuple[int, str], list[JobSummary]] = {}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for (name, _, setting, _), summary in zip(tasks, pool.map(_summary, tasks), strict=True):
            summaries.setdefault((id(setting), name), []).append(summary)
            if progress is not None:
                progress(name)
    return [
        average(summaries[id(setting), name], network=setting.network, arrivals=setting.arrivals)
        for setting in settings
        for name in policies
    ]


def _summary(task: tuple[str, list[Job], JobSetting, int]) -> JobSummary:
    return simulate(*task)[0]


def average(summaries: Sequence[JobSummary], *, network: str, arrivals: str) -> JobRow:
    """Means over seeds and their 95 % intervals (Student's t)."""
    means: dict[str, object] = {}
    ci95: dict[str, float] = {}
    for name in JobSummary.__struct_fields__:
        values = [getattr(summary, name) for summary in summaries]
        if isinstance(values[0], dict):
            means[name] = {key: float(np.mean([value[key] for value in values])) for key in values[0]}
        elif isinstance(values[0], str):
            means[name] = values[0]
        else:
            means[name], ci95[name] = mean_of(values)
    return JobRow(
        network=network,
        arrivals=arrivals,
        seeds=len(summaries),
        told_durations=POLICIES.make(summaries[0].policy).knows_service,
        summary=JobSummary(**means),  # type: ignore[arg-type]
        ci95=ci95,
        by_seed={name: [getattr(summary, name) for summary in summaries] for name in BY_SEED},
    )
