"""The training models that traces name: those we know, those of a file, and which job trains which."""

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.random import Generator

from slimsched.core import config
from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.jobs.domain import Job, Scaling, TrainingModel

# -- The training models we know: seconds and exposed bytes per iteration, derived from measurements.
#
# benchmarks/measured_models.py derives this table anew and says how. MEASURED are those with measured step
# times; jobs of a trace that names no model draw from them.

MEASURED = ("lm", "transformer", "resnet18", "resnet50", "bert", "deepspeech2", "imagenet", "ncf", "yolov3")

_TABLE = (
    # name, seconds, exposed megabytes, source
    ("lm", 0.002011, 54.26, "Gavel V100, LM (batch size 20)"),
    ("transformer", 0.02014, 140.1, "Gavel V100, Transformer (batch size 64)"),
    ("resnet18", 0.003909, 43.22, "Gavel V100, ResNet-18 (batch size 64)"),
    ("resnet50", 0.03597, 13.65, "Gavel V100, ResNet-50 (batch size 16)"),
    ("bert", 0.1533, 606, "Sia A100 step, T4 4+4 synchronisation, batch 12"),
    ("deepspeech2", 0.729, 195.6, "Sia A100 step, T4 4+4 synchronisation, batch 20"),
    ("imagenet", 0.1734, 52.7, "Sia A100 step, T4 4+4 synchronisation, batch 115"),
    ("ncf", 0.008765, 9.948, "Sia A100 step, T4 4+4 synchronisation, batch 257"),
    ("yolov3", 0.4486, 443, "Sia A100 step, T4 4+4 synchronisation, batch 8"),
    ("vgg11", 0.3941, 531.6, "Tiresias 60-job trace, public parameter count"),
    ("vgg16", 0.4477, 553.6, "Tiresias 60-job trace, public parameter count"),
    ("vgg19", 0.4662, 574.8, "Tiresias 60-job trace, public parameter count"),
    ("alexnet", 0.1619, 244.4, "Tiresias 60-job trace, public parameter count"),
    ("googlenet", 0.1401, 13.2, "Tiresias 60-job trace, public parameter count"),
    ("inception3", 0.337, 47.6, "Tiresias 60-job trace, public parameter count"),
    ("inception4", 0.6436, 85.4, "Tiresias 60-job trace, public parameter count"),
    ("resnet101", 0.3646, 89, "Tiresias 60-job trace, public parameter count"),
    ("resnet152", 0.5085, 120.4, "Tiresias 60-job trace, public parameter count"),
)

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
_PACE = {
    # on N T4s, four per machine, at the best batch size; 1 is the pace on one
    "bert": (1, 2.075, 4.08, 5.533, 8.635, 10.28, 11.68, 13.98, 15.17, 13.42),
    "deepspeech2": (1, 1.753, 3.449, 4.898, 6.851, 8.382, 9.385, 8.911, 10.25, 10.37),
    "imagenet": (1, 1.921, 3.517, 6.669, 9.644, 11.88, 16.67, 19.41, 26.94, 33.09),
    "ncf": (1, 1.113, 1.668, 0.6875, 1.03, 0.9616, 0.8588, 0.7711, 0.5841, 0.6654),
    "yolov3": (1, 1.88, 2.68, 1.981, 2.47, 3.375, 3.221, 3.418, 3.194, 4.412),
}

TRAINING_MODELS = {
    name: TrainingModel(
        name=name,
        compute_s=compute_s,
        exposed_bytes=exposed_mb * 1e6,
        source=source,
        scaling=tuple(zip(_SIZES, _PACE.get(name, ()), strict=False)),
    )
    for name, compute_s, exposed_mb, source in _TABLE
}


# -- Part of a trace made into an experiment: a window of jobs, their arrivals, and the models they train.

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


# -- Training models of your own: a TOML file with a `[[model]]` table for each.
#
# By its bytes: `compute_s` of an iteration and the `gradient_mb` that all GPUs exchange, of which `hidden`
# (a share) is sent while others are computed.
#
# By measurement: `compute_s` of an iteration on one machine and `spread_s` of the same with each of the
# `gpus` GPUs on a machine of its own, behind cards of `nic_gb_per_s`. `slowdown` may stand in for `spread_s`.
# The excess of a ring over n GPUs is 2 (n − 1) / n · S / B, which gives the exposed bytes S.
#
# `scaling` lists pairs of GPUs and pace for jobs that may get fewer or more GPUs than they ask for.

GB = 1e9


class _Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model as the file gives it."""

    name: config.Name
    compute_s: config.PositiveSeconds
    gradient_mb: config.Amount | None = None
    hidden: config.Share = 0.0
    spread_s: config.PositiveSeconds | None = None
    slowdown: config.Factor | None = None
    gpus: config.Count = 8
    nic_gb_per_s: config.PositiveAmount = 12.5
    scaling: Scaling = ()
    source: str = ""


class _ModelFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All models of a file."""

    model: tuple[_Model, ...]


def read_model_file(path: Path) -> dict[str, TrainingModel]:
    """Read models by name; those that we know already are replaced where the file names them too."""
    if not path.is_file():
        raise ConfigError(
            f"no model file at {path}; give a TOML file with [[model]] tables, see docs/jobs.md"
        )
    raw = config.parse_toml(config.read_packed_text(path), path.name)
    file = config.read_section(raw, _ModelFile, path.name)
    return {**TRAINING_MODELS, **{one.name: _training_model(one, path.name) for one in file.model}}


def _training_model(model: _Model, file: str) -> TrainingModel:
    ways = [model.gradient_mb is not None, model.spread_s is not None, model.slowdown is not None]
    if sum(ways) != 1:
        raise ConfigError(
            f"{file}, model '{model.name}': give exactly one of gradient_mb, spread_s and slowdown"
        )
    sizes = [gpus for gpus, _ in model.scaling]
    if sizes != sorted(set(sizes)):
        raise ConfigError(
            f"{file}, model '{model.name}': give the sizes in `scaling` once and in ascending order"
        )
    if model.gradient_mb is not None:
        exposed_bytes = 1e6 * model.gradient_mb * (1.0 - model.hidden)
    else:
        if model.gpus < 2:
            raise ConfigError(f"{file}, model '{model.name}': one GPU exchanges nothing; give gpus from 2 on")
        spread_s = model.spread_s or model.compute_s * (model.slowdown or 1.0)
        around = 2 * (model.gpus - 1) / model.gpus
        exposed_bytes = max(0.0, spread_s - model.compute_s) * model.nic_gb_per_s * GB / around
    return TrainingModel(
        name=model.name,
        compute_s=model.compute_s,
        exposed_bytes=exposed_bytes,
        source=model.source or file,
        scaling=model.scaling,
    )
