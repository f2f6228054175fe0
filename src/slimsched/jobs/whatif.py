"""What a cluster's past would have looked like under other policies, racks and networks.

First the present is fitted: the jobs that ran are simulated under the policy that ran them, and compared with
what happened. Then each alternative is simulated and compared with the fitted present: who gains, who loses.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import fmean

import msgspec
import numpy as np
from msgspec import Struct

from slimsched.jobs.domain import Job, Machine, Topology
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.simulated.comparison import JobRow, JobSetting, average, build, simulate
from slimsched.jobs.slurm.records import SlurmRecord
from slimsched.jobs.slurm.wire import request_in
from slimsched.jobs.telemetry import JobHistory, JobSummary, histories
from slimsched.jobs.traces.models import assign_models

# -- Jobs that a real cluster has run, as the simulator needs them.
#
# A record says for how long a job held its GPUs *where it ran and beside whom*. Its ideal service is that
# time divided by the slowdown that the simulated present gives it: at first the slowdown of its model at that
# tier, then `refit` step by step. So other policies gain what the present loses, and not what the model adds.
# `handover_s` is for how long GPUs lie idle between the end of a job and the start of one that waited: a
# simulated job gets its GPUs that much before it starts to run on them.

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

    def differences(self, recorded: "Figures") -> dict[str, float]:
        """Relative difference of each of these figures from the recorded one, where that is not 0."""
        return {
            field: getattr(self, field) / theirs - 1.0
            for field in Figures.__struct_fields__
            if (theirs := getattr(recorded, field))
        }

    def distance(self, recorded: "Figures") -> float:
        """The larger of the relative differences of mean wait and makespan."""
        off = self.differences(recorded)
        return max(abs(off.get(name, 0.0)) for name in ("wait_mean_s", "makespan_s"))


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

    def simulated(self, histories: Mapping[str, JobHistory]) -> Figures:
        """Return the figures of a simulation of these jobs, over those that count."""
        times = [
            (one.submitted_s, one.submitted_s + one.wait_s + self.handover_s, one.finished_s, one.job.gpus)
            for job_id, one in histories.items()
            if job_id in self.counted and one.finished_s is not None
        ]
        return _figures(times, self.topology.gpus)

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


# -- Who gains and who loses when one schedule takes the place of another: by user and by size of gang.

SIZES = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64), (65, 10**9))


class Gain(Struct, frozen=True, kw_only=True):
    """A group of jobs under two schedules: mean wait and mean completion time, before and after."""

    group: str
    jobs: int
    gpu_h: float
    wait_before_s: float
    wait_after_s: float
    jct_before_s: float
    jct_after_s: float

    @property
    def change(self) -> float:
        """Relative change of the mean completion time; below 0 is a gain."""
        return self.jct_after_s / self.jct_before_s - 1.0 if self.jct_before_s else 0.0


Pair = tuple[Mapping[str, JobHistory], Mapping[str, JobHistory]]
"""The same jobs under the schedule of before and the one of after."""


def size_of(job: Job) -> str:
    """Name the class of sizes a gang falls into."""
    low, high = next(bounds for bounds in SIZES if job.gpus <= bounds[1])
    if high == 10**9:
        return f"{low} and more GPUs"
    return f"{low} GPU{'s' * (low > 1)}" if low == high else f"{low}–{high} GPUs"


def gains(pairs: Sequence[Pair], group_of: Callable[[Job], str]) -> list[Gain]:
    """Return each group's gain, averaged over pairs of runs of the same jobs; the largest group first."""
    groups: dict[str, list[tuple[JobHistory, JobHistory]]] = {}
    for before, after in pairs:
        for job_id, history in before.items():
            groups.setdefault(group_of(history.job), []).append((history, after[job_id]))
    made = [_gain(group, both, len(pairs)) for group, both in groups.items()]
    return sorted(made, key=lambda gain: (-gain.gpu_h, gain.group))


def _gain(group: str, both: list[tuple[JobHistory, JobHistory]], runs: int) -> Gain:
    return Gain(
        group=group,
        jobs=len(both) // runs,
        gpu_h=sum(before.job.gpus * before.job.service_s for before, _ in both) / runs / 3600.0,
        wait_before_s=fmean(before.wait_s for before, _ in both),
        wait_after_s=fmean(after.wait_s for _, after in both),
        jct_before_s=fmean(before.jct_s for before, _ in both),
        jct_after_s=fmean(after.jct_s for _, after in both),
    )


CLOSE = 0.10
"""Relative difference up to which the simulated present counts as agreeing with the records."""
AS_IT_IS = "as it is"
FITS = 12
"""Simulations of the present that fit the ideal times of jobs to the records, at most."""
CLOSE_ENOUGH = 0.001
"""Relative difference at which fitting ends."""
FULL_FITS = 3
"""Fits that go all the way; later ones go half of it, because all jobs change at once and overshoot."""


class World(Struct, frozen=True, kw_only=True):
    """A cluster as it is or might be: its racks and its network."""

    name: str
    machines: tuple[Machine, ...]
    network: str


class PolicyOutcome(Struct, frozen=True, kw_only=True):
    """A policy in a world: means over seeds."""

    policy: str
    world: str
    row: JobRow


class WhatIf(Struct, frozen=True, kw_only=True):
    """What the past was, what the simulator makes of it, and what it could have been.

    `simulated` is the present with recorded times, `modelled` the same with models and a network. The first
    outcome is the modelled present; `by_user` and `by_size` set it beside the policy `compared`.
    """

    cluster: str
    gpus: int
    racks: int
    jobs: int
    users: int
    days: float
    left_out: dict[str, int]
    handover_s: float
    present: str
    network: str
    seeds: int
    models_named: int
    models_drawn: tuple[str, ...]
    recorded: Figures
    simulated: Figures
    modelled: Figures
    outcomes: list[PolicyOutcome]
    compared: str
    by_user: list[Gain]
    by_size: list[Gain]

    def differences(self, figures: Figures | None = None) -> dict[str, float]:
        """Relative difference of each simulated figure of the present from the recorded one."""
        return (figures or self.simulated).differences(self.recorded)

    def agrees(self, figures: Figures | None = None) -> bool:
        """Whether the simulated present is close to the records in mean wait and makespan."""
        return (figures or self.simulated).distance(self.recorded) <= CLOSE


class Question(Struct, frozen=True, kw_only=True):
    """What is asked: the present as policy and setting, policies to try, and other worlds to try."""

    present: str
    policies: tuple[str, ...]
    worlds: tuple[World, ...]
    models: tuple[str, ...]
    setting: JobSetting
    seeds: int

    @property
    def tried(self) -> list[tuple[str, World]]:
        """Every policy in the world as it is, then the present one and the last in the other worlds."""
        setting, last = self.setting, self.policies[-1]
        here = World(name=AS_IT_IS, machines=setting.machines, network=setting.network)
        tried = [(name, here) for name in dict.fromkeys((self.present, *self.policies))]
        both = dict.fromkeys((self.present, last))
        return tried + [(name, world) for world in self.worlds for name in both]

    @property
    def runs(self) -> int:
        """Simulations to be made, at most."""
        return 1 + self.seeds * (FITS + len(self.tried))


def answer(
    past: Past, question: Question, left_out: Mapping[str, int], progress: Callable[[str], None]
) -> WhatIf:
    """Check the present, then run every alternative once per draw of the models that nobody knows."""
    setting, tried = question.setting, question.tried
    checked = histories(build(question.present, past.queue(), setting, 0).run())
    progress("the present")
    counted = [one for one in past.records if one.id in past.counted]
    named = sum(bool(model_of(one, setting.known_models)) for one in past.records)
    certain = named == len(past.records) or question.models == (NO_MODEL,)
    draws = [_draw(past, question, seed, progress) for seed in range(1 if certain else question.seeds)]
    here = {policy: number for number, (policy, world) in enumerate(tried) if world.name == AS_IT_IS}
    now, then = here[question.present], here[question.policies[-1]]
    pairs = [(draw[now][1], draw[then][1]) for draw in draws]
    presents = [past.simulated(before) for before, _ in pairs]
    return WhatIf(
        cluster=setting.cluster,
        gpus=setting.topology.gpus,
        racks=len(setting.topology.racks),
        jobs=len(counted),
        users=len({one.user for one in counted}),
        days=(past.last_s - min(one.eligible_s for one in counted)) / DAY_S,
        left_out=dict(left_out),
        handover_s=past.handover_s,
        present=question.present,
        network=setting.network,
        seeds=len(draws),
        models_named=named,
        models_drawn=() if certain else question.models,
        recorded=past.figures,
        simulated=past.simulated(checked),
        modelled=Figures(
            **{name: fmean(getattr(one, name) for one in presents) for name in Figures.__struct_fields__}
        ),
        outcomes=[
            PolicyOutcome(
                policy=policy,
                world=world.name,
                row=average([draw[number][0] for draw in draws], network=world.network, arrivals="recorded"),
            )
            for number, (policy, world) in enumerate(tried)
        ],
        compared=question.policies[-1],
        by_user=gains(pairs, lambda job: job.tenant),
        by_size=gains(pairs, size_of),
    )


def _draw(
    past: Past, question: Question, seed: int, progress: Callable[[str], None]
) -> list[tuple[JobSummary, dict[str, JobHistory]]]:
    """Run every policy in its world with the models of one draw, and keep what counts."""
    jobs = _fit(past, question, seed, progress)
    runs = []
    for policy, world in question.tried:
        setting = msgspec.structs.replace(question.setting, machines=world.machines, network=world.network)
        runs.append(simulate(policy, jobs, setting, 0, counted=past.counted)[:2])
        progress(f"{policy}, {world.name}")
    return runs


def _fit(past: Past, question: Question, seed: int, progress: Callable[[str], None]) -> list[Job]:
    """Scale ideal times until the simulated present agrees with the records; returns the closest try.

    A job that runs a little longer lets others start elsewhere, so tries do not come ever closer.
    """
    sensitivity = question.setting.scheduler_setting(question.present).sensitivity()
    jobs = closest = past.jobs(sensitivity, question.models, seed)
    least = inf
    for number in range(FITS):
        present = histories(build(question.present, jobs, question.setting, seed).run())
        progress("fitting the present")
        off = past.simulated(present).distance(past.figures)
        if off < least:
            closest, least = jobs, off
        if least <= CLOSE_ENOUGH:
            break
        jobs = past.refit(jobs, present, 1.0 if number < FULL_FITS else 0.5)
    return closest
