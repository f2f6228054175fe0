"""What a cluster's past would have looked like under other policies, racks and networks.

First the check: the recorded jobs under the policy that stands for the present scheduler, each for as long
as it really ran. Then the same jobs with models and a network: their ideal times are fitted so that the
simulated present runs them for as long as recorded, and then every alternative gets them. Models that the
records do not name are drawn, so every figure is a mean over seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf
from statistics import fmean

import msgspec
from msgspec import Struct

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.topology import Machine
from slimsched.jobs.execution.simulated.comparison import JobRow, JobSetting, average, build, simulate
from slimsched.jobs.execution.simulated.past import NO_MODEL, Figures, Past, model_of
from slimsched.jobs.telemetry.gains import Gain, Pair, gains, size_of
from slimsched.jobs.telemetry.runs import JobHistory, histories
from slimsched.jobs.telemetry.summary import JobSummary, summarize

CLOSE = 0.10
"""Relative difference up to which the simulated present counts as agreeing with the records."""
AS_IT_IS = "as it is"
FITS = 12
"""Simulations of the present that fit the ideal times of jobs to the records, at most."""
CLOSE_ENOUGH = 0.001
"""Relative difference at which fitting ends."""
FULL_FITS = 3
"""Fits that go all the way; later ones go half of it, because all jobs change at once and overshoot."""
DAY_S = 86400.0


class World(Struct, frozen=True, kw_only=True):
    """A cluster as it is or might be: its racks and its network."""

    name: str
    machines: tuple[Machine, ...]
    network: str


class Outcome(Struct, frozen=True, kw_only=True):
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
    outcomes: list[Outcome]
    compared: str
    by_user: list[Gain]
    by_size: list[Gain]

    def differences(self, figures: Figures | None = None) -> dict[str, float]:
        """Relative difference of each simulated figure of the present from the recorded one."""
        return {
            field: getattr(figures or self.simulated, field) / recorded - 1.0
            for field in Figures.__struct_fields__
            if (recorded := getattr(self.recorded, field))
        }

    def agrees(self, figures: Figures | None = None) -> bool:
        """Whether the simulated present is close to the records in mean wait and makespan."""
        off = self.differences(figures)
        return all(abs(off.get(name, 0.0)) <= CLOSE for name in ("wait_mean_s", "makespan_s"))


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
    """Check the present, then run every alternative over the seeds."""
    setting = question.setting
    checked = histories(build(question.present, past.queue(), setting, 0).run())
    progress("the present")
    study = _Study(past, question)
    for seed in range(study.seeds):
        study.run(seed, progress)
    counted = [one for one in past.records if one.id in past.counted]
    topology = setting.topology
    return WhatIf(
        cluster=setting.cluster,
        gpus=topology.gpus,
        racks=len(topology.racks),
        jobs=len(counted),
        users=len({one.user for one in counted}),
        days=(past.last_s - min(one.eligible_s for one in counted)) / DAY_S,
        left_out=dict(left_out),
        handover_s=past.handover_s,
        present=question.present,
        network=setting.network,
        seeds=study.seeds,
        models_named=study.named,
        models_drawn=() if study.certain else question.models,
        recorded=past.figures,
        simulated=past.simulated(checked),
        modelled=study.modelled(),
        outcomes=study.outcomes(),
        compared=question.policies[-1],
        by_user=gains(study.pairs, lambda job: job.tenant),
        by_size=gains(study.pairs, size_of),
    )


class _Study:
    """All runs of a question so far, seed by seed."""

    def __init__(self, past: Past, question: Question) -> None:
        self.pairs: list[Pair] = []
        self._past = past
        self._question = question
        self._presents: list[Figures] = []
        self._summaries: list[list[JobSummary]] = [[] for _ in question.tried]

    @cached_property
    def named(self) -> int:
        """Jobs whose model the records name."""
        known = self._question.setting.known_models
        return sum(bool(model_of(one, known)) for one in self._past.records)

    @property
    def certain(self) -> bool:
        """Whether no model has to be drawn."""
        return self.named == len(self._past.records) or self._question.models == (NO_MODEL,)

    @property
    def seeds(self) -> int:
        """Draws to make; one is enough where nothing is drawn."""
        return 1 if self.certain else self._question.seeds

    def run(self, seed: int, progress: Callable[[str], None]) -> None:
        """Run every policy in its world with the models of one draw."""
        question = self._question
        jobs = self._fit(seed, progress)
        by_policy: dict[str, dict[str, JobHistory]] = {}
        for (policy, world), summaries in zip(question.tried, self._summaries, strict=True):
            setting = msgspec.structs.replace(
                question.setting, machines=world.machines, network=world.network
            )
            summary, counted = self._simulate(jobs, policy, setting)
            summaries.append(summary)
            if world.name == AS_IT_IS:
                by_policy[policy] = counted
            progress(f"{policy}, {world.name}")
        self.pairs.append((by_policy[question.present], by_policy[question.policies[-1]]))
        self._presents.append(self._past.simulated(by_policy[question.present]))

    def _fit(self, seed: int, progress: Callable[[str], None]) -> list[Job]:
        """Scale ideal times until the simulated present agrees with the records; returns the closest try.

        A job that runs a little longer lets others start elsewhere, so tries do not come ever closer.
        """
        question, past = self._question, self._past
        sensitivity = question.setting.scheduler_setting(question.present).sensitivity()
        jobs = closest = past.jobs(sensitivity, question.models, seed)
        least = inf
        for number in range(FITS):
            present = histories(build(question.present, jobs, question.setting, seed).run())
            progress("fitting the present")
            off = past.distance(past.simulated(past.only_counted(present)))
            if off < least:
                closest, least = jobs, off
            if least <= CLOSE_ENOUGH:
                break
            jobs = past.refit(jobs, present, 1.0 if number < FULL_FITS else 0.5)
        return closest

    def modelled(self) -> Figures:
        """The present with models and a network: means over the seeds so far."""
        names = Figures.__struct_fields__
        return Figures(**{name: fmean(getattr(one, name) for one in self._presents) for name in names})

    def outcomes(self) -> list[Outcome]:
        """Means over the seeds so far."""
        return [
            Outcome(
                policy=policy,
                world=world.name,
                row=average(summaries, network=world.network, arrivals="recorded"),
            )
            for (policy, world), summaries in zip(self._question.tried, self._summaries, strict=True)
        ]

    def _simulate(
        self, jobs: Sequence[Job], policy: str, setting: JobSetting
    ) -> tuple[JobSummary, dict[str, JobHistory]]:
        """Simulate all jobs, and fold those that count into figures."""
        summary, by_job, _ = simulate(policy, jobs, setting, 0)
        counted = self._past.only_counted(by_job)
        folded = summarize(
            counted,
            policy=policy,
            sensitivity=setting.scheduler_setting(policy).sensitivity(),
            save_s=setting.checkpoint.save_s,
            restore_s=setting.checkpoint.restore_s,
            events=int(summary.events),
            wall_s=summary.events / max(summary.events_per_wall_s, 1e-9),
        )
        return folded, counted
