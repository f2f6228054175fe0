"""Jobs that a real cluster has run, as the simulator needs them.

A record says for how long a job held its GPUs *where it ran and beside whom*. Its ideal service is that time
divided by the slowdown that the simulated present gives it: at first the slowdown of its model at that tier,
then `refit` step by step. So other policies gain what the present loses, and not what the model adds.
`handover_s` is for how long GPUs lie idle between the end of a job and the start of one that waited: a
simulated job gets its GPUs that much before it starts to run on them.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf
from statistics import fmean

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.execution.slurm.note import request_in
from slimsched.jobs.execution.slurm.records import SlurmRecord
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.telemetry.runs import JobHistory
from slimsched.jobs.traces.window import assign_models

LONGEST_HANDOVER_S = 60.0
DAY_S = 86400.0
NO_MODEL = "none"
"""In place of models to draw from: jobs whose model nobody knows never communicate."""


class Figures(Struct, frozen=True, kw_only=True):
    """What both a real and a simulated schedule have."""

    wait_mean_s: float
    wait_p90_s: float
    jct_mean_s: float
    makespan_s: float
    utilization: float


class Past:
    """The records of a cluster; those that became eligible in the last `days` days count in figures."""

    def __init__(self, records: Sequence[SlurmRecord], topology: Topology, *, days: float) -> None:
        self.topology = topology
        fitting = (record for record in records if record.gpus <= topology.gpus)
        self.records = sorted(fitting, key=lambda record: record.eligible_s)
        self.too_large = len(records) - len(self.records)
        self.last_s = max(record.end_s or record.start_s for record in records)
        since_s = max(record.eligible_s for record in records) - days * DAY_S
        done = [one for one in self.records if one.end_s is not None and one.eligible_s >= since_s]
        self.counted = {record.id for record in done}
        self.handover_s = handover_s(self.records)
        self.figures = _figures(
            [(one.eligible_s, one.start_s, one.end_s or 0.0, one.gpus) for one in done], topology.gpus
        )

    def queue(self) -> list[Job]:
        """Return the jobs as they were, each for as long as it really ran: no network slows them again."""
        return [self._job(record, "", 1.0) for record in self.records]

    def jobs(self, sensitivity: Sensitivity, models: Sequence[str], seed: int) -> list[Job]:
        """Return the jobs with their models and ideal service; the seed draws the models nobody knows."""
        named = [self._job(one, model_of(one, sensitivity.models), 1.0) for one in self.records]
        if tuple(models) != (NO_MODEL,):
            named = assign_models(named, np.random.default_rng(seed), models, sensitivity.models)
        return [
            self._job(record, job.model, sensitivity.traits(job).slow[self._tier(record)])
            for record, job in zip(self.records, named, strict=True)
        ]

    def refit(self, jobs: Sequence[Job], histories: Mapping[str, JobHistory], share: float) -> list[Job]:
        """Scale each job's service so that in the simulated present it would run for as long as recorded.

        A `share` below 1 goes only part of the way.
        """
        fitted = []
        for record, job in zip(self.records, jobs, strict=True):
            run_s = sum(run.end_s - run.start_s for run in histories[job.id].runs)
            ratio = (self._held_s(record) / run_s) ** share if run_s else 1.0
            fitted.append(msgspec.structs.replace(job, service_s=job.service_s * ratio))
        return fitted

    def distance(self, simulated: Figures) -> float:
        """How far simulated figures are from the recorded ones, as a share: mean wait or makespan."""
        pairs = [
            (simulated.wait_mean_s, self.figures.wait_mean_s),
            (simulated.makespan_s, self.figures.makespan_s),
        ]
        return max((abs(ours / theirs - 1.0) for ours, theirs in pairs if theirs), default=0.0)

    def simulated(self, histories: Mapping[str, JobHistory]) -> Figures:
        """Return the figures of a simulation of these jobs, over those that count."""
        times = [
            (one.submitted_s, one.submitted_s + one.wait_s + self.handover_s, one.finished_s, one.job.gpus)
            for one in self.only_counted(histories).values()
            if one.finished_s is not None
        ]
        return _figures(times, self.topology.gpus)

    def only_counted(self, histories: Mapping[str, JobHistory]) -> dict[str, JobHistory]:
        """Keep the histories of the jobs that count."""
        return {job_id: one for job_id, one in histories.items() if job_id in self.counted}

    def _tier(self, record: SlurmRecord) -> int:
        known = tuple((name, 1) for name in record.machines if name in self.topology.index)
        return self.topology.tier(known) if known else self.topology.floor(record.gpus)

    def _held_s(self, record: SlurmRecord) -> float:
        """For how long GPUs are taken in the simulation: the recorded time and the handover."""
        end_s = self.last_s if record.end_s is None else record.end_s
        return end_s - record.start_s + self.handover_s

    def _job(self, record: SlurmRecord, model: str, slowdown: float) -> Job:
        return Job(
            id=record.id,
            arrival_s=record.eligible_s - self.records[0].eligible_s,
            gpus=record.gpus,
            service_s=self._held_s(record) / slowdown,
            model=model,
            tenant=record.user,
            limit_s=record.limit_s,
            machines=len(record.machines),
        )


def model_of(record: SlurmRecord, known: Mapping[str, object]) -> str:
    """Return the model that a job's comment (`slim jobs submit --model`) or a word of its name names."""
    request = request_in(record.comment)
    if request is not None and request.model:
        return request.model
    words = "".join(one if one.isalnum() else " " for one in record.name.lower()).split()
    return next((word for word in words if word in known), "")


def handover_s(records: Sequence[SlurmRecord]) -> float:
    """Return how long GPUs lie idle between the end of a job and the start of one that waited for it.

    A mean over jobs that waited, from the last end on one of their machines. The longest tenth is left out:
    those waited for something else. Records are in whole seconds, so a median would be 0 or 1.
    """
    ends_s: dict[str, list[float]] = {}
    for record in records:
        for machine in record.machines:
            if record.end_s is not None:
                ends_s.setdefault(machine, []).append(record.end_s)
    for times_s in ends_s.values():
        times_s.sort()
    gaps_s = []
    for record in records:
        last_s = max(
            (_last_before(ends_s.get(name, ()), record.start_s) for name in record.machines), default=-inf
        )
        if record.eligible_s < last_s >= record.start_s - LONGEST_HANDOVER_S:
            gaps_s.append(record.start_s - last_s)
    gaps_s.sort()
    return fmean(gaps_s[: -(-len(gaps_s) * 9 // 10)]) if gaps_s else 0.0


def _last_before(times_s: Sequence[float], at_s: float) -> float:
    """Return the last of these times that is not after a time."""
    before = bisect_right(times_s, at_s)
    return times_s[before - 1] if before else -inf


def _figures(times: Sequence[tuple[float, float, float, int]], gpus: int) -> Figures:
    """Return the figures of jobs given as (eligible, start, end, GPUs)."""
    eligible_s, start_s, end_s, size = (np.array(column, dtype=float) for column in zip(*times, strict=True))
    makespan_s = float(end_s.max() - eligible_s.min())
    wait_s = start_s - eligible_s
    return Figures(
        wait_mean_s=float(wait_s.mean()),
        wait_p90_s=float(np.percentile(wait_s, 90)),
        jct_mean_s=float((end_s - eligible_s).mean()),
        makespan_s=makespan_s,
        utilization=float((size * (end_s - start_s)).sum() / (gpus * max(makespan_s, 1e-9))),
    )
