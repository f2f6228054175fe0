"""What the simulator says about the same gangs."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from live import SLURM, SPEED, Course
from racks import Racks
from workload import LIMIT_S, MODELS, Gang, sensitivity_of

from slimsched.jobs.domain import Job
from slimsched.jobs.simulated.cluster import Checkpoint
from slimsched.jobs.simulated.comparison import JobSetting, build
from slimsched.jobs.telemetry import JobHistory, histories

FITS = 3
DRAWS = 60
LATE_S = 1.0
"""How much later Slurm or the controller may notice a gang, at most."""
REQUEUE_S = 6.0
"""What a stop costs on this Slurm: a stopped gang may start again after cred_expire and a second."""


class Overhead(NamedTuple):
    """What a gang holds its GPUs for besides its own time: until its processes run, and after their end."""

    before_s: float
    after_s: float


def predict(racks: Racks, gangs: Sequence[Gang], scheduler: str, overhead: Overhead) -> list[list[Course]]:
    """Simulate the gangs often, each time a little later: a second decides who starts beside whom."""
    rng = random.Random(0)
    draws = [
        [gang._replace(arrival_s=gang.arrival_s + rng.uniform(0.0, LATE_S)) for gang in gangs]
        for _ in range(DRAWS)
    ]
    return [_simulate(racks, drawn, scheduler, overhead) for drawn in draws]


def _simulate(racks: Racks, gangs: Sequence[Gang], scheduler: str, overhead: Overhead) -> list[Course]:
    """Simulate the gangs; the overhead is the same at every tier, so it is fitted to each gang's slowdown."""
    speed = 1.0 if scheduler == SLURM else SPEED
    policy = "backfill:interval_s=1" if scheduler == SLURM else scheduler
    checkpoint = Checkpoint(save_s=0.0, restore_s=REQUEUE_S * speed)
    setting = JobSetting(
        machines=racks.topology.machines,
        cluster=racks.topology.name,
        known_models=MODELS,
        checkpoint=checkpoint,
    )
    jobs = jobs_of(racks, gangs, speed)
    more_s = speed * (overhead.before_s + overhead.after_s)
    told = [msgspec.structs.replace(job, service_s=job.service_s + more_s) for job in jobs]
    for _ in range(FITS):
        done = histories(build(policy, told, setting, 0).run())
        told = [
            msgspec.structs.replace(job, service_s=job.service_s + more_s / _slowdown(done[job.id], one))
            for job, one in zip(jobs, told, strict=True)
        ]
    rack_of = racks.topology.rack_of_name
    return [
        Course(
            one.submitted_s / speed,
            one.runs[0].start_s / speed + overhead.before_s,
            (one.finished_s or 0.0) / speed - overhead.after_s,
            len({rack_of[name] for name, _ in one.runs[-1].placement}),
        )
        for one in (done[job.id] for job in jobs)
    ]


def jobs_of(racks: Racks, gangs: Sequence[Gang], speed: float) -> list[Job]:
    """The gangs as the simulator takes them, `speed` simulated seconds to a real one."""
    sensitivity = sensitivity_of(racks)
    jobs = []
    for number, gang in enumerate(gangs):
        job = Job(
            id=str(number),
            arrival_s=speed * gang.arrival_s,
            gpus=gang.gpus,
            service_s=1.0,
            model=gang.model,
            limit_s=speed * LIMIT_S,
            machines=gang.machines(racks.topology.machines[0].gpus),
        )
        ideal_s = gang.steps * sensitivity.ideal_iteration_s(job)
        jobs.append(msgspec.structs.replace(job, service_s=speed * ideal_s))
    return jobs


def _slowdown(history: JobHistory, job: Job) -> float:
    return max(1.0, sum(run.end_s - run.start_s for run in history.runs) / job.service_s)
