"""Part of a trace made into an experiment: a window of jobs, their arrivals, and the models they train."""

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
from numpy.random import Generator

from slimsched.jobs.domain.job import Job
from slimsched.jobs.traces.known_models import MEASURED, TRAINING_MODELS
from slimsched.kernel.errors import ConfigError, UnknownNameError

ARRIVALS = ("trace", "batch", "poisson")


def window(jobs: Sequence[Job], count: int, rng: Generator) -> list[Job]:
    """Take `count` consecutive jobs from a random place of the trace, the first arriving at 0."""
    if count >= len(jobs):
        return list(jobs)
    start = int(rng.integers(0, len(jobs) - count + 1))
    first_s = jobs[start].arrival_s
    return [
        msgspec.structs.replace(job, arrival_s=job.arrival_s - first_s) for job in jobs[start : start + count]
    ]


def assign_models(
    jobs: Sequence[Job],
    rng: Generator,
    models: Sequence[str] = MEASURED,
    known: Collection[str] = TRAINING_MODELS,
) -> list[Job]:
    """Let every job that names no model draw one of these models, all equally likely.

    Every job draws once, in order of arrival, whether it needs a model or not: the seed alone decides.
    """
    for name in models:
        if name not in known:
            raise UnknownNameError("training model", name, tuple(known))
    draws = rng.integers(0, len(models), size=len(jobs))
    return [
        job if job.model else msgspec.structs.replace(job, model=models[int(draw)])
        for job, draw in zip(jobs, draws, strict=True)
    ]


def rearrange(jobs: Sequence[Job], arrivals: str, *, rng: Generator, gpus: int, load: float) -> list[Job]:
    """Let the jobs arrive as in the trace, all at once, or as a Poisson process at an offered load.

    The load is what the jobs ask for in ideal GPU-seconds over what the cluster has until the last arrival.
    """
    if arrivals == "trace":
        return list(jobs)
    if arrivals == "batch":
        return [msgspec.structs.replace(job, arrival_s=0.0) for job in jobs]
    if arrivals != "poisson":
        raise UnknownNameError("kind of arrivals", arrivals, ARRIVALS)
    if not load > 0.0:
        raise ConfigError(f"a load of {load:g} is not possible; give a share above 0, such as 0.9")
    work = sum(job.gpus * job.service_s for job in jobs)
    mean_gap_s = work / (load * gpus) / len(jobs)
    times_s = np.cumsum(rng.exponential(mean_gap_s, size=len(jobs)))
    return [
        msgspec.structs.replace(job, arrival_s=round(float(at_s - times_s[0]), 3))
        for job, at_s in zip(jobs, times_s, strict=True)
    ]
