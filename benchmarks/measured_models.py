"""Derives the tables that ship with the package anew from published measurements.

    python benchmarks/measured_models.py DATA

DATA is a folder with `traces/`, in which the archives of Gavel, Sia, Tiresias and Helios lie. Training models
come from measured step times: Gavel's, Sia's and the iteration counts of Tiresias.

A gang's step on scattered GPUs takes longer than on one machine by the communication that computing does
not hide. On a ring over n GPUs at B bytes a second that excess is 2 (n − 1) / n · S / B; B is not stated by
the authors, so it is calibrated once for each source with ResNet-18, whose gradients are known (11.7 million
parameters of 4 bytes). S is then the model's exposed bytes. Negative excess counts as none.
"""

import argparse
import csv
import gzip
import io
import json
import math
import tarfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from slimsched.jobs.domain import Job, Scaling, TrainingModel
from slimsched.jobs.traces.jobs import QUANTILES, SERVICE_S, locate_trace, read_job_trace

# -- What Sia's authors measured of a model on T4s (`aws`, four per machine): steps, progress, and so its
# pace.
#
#     seconds(g, B) = Σ over epochs (progress of the epoch / gain(B)) · seconds of an iteration(g, B)
#     gain(B) = (v + q) / (v / scale + q),  scale = B / smallest B
#
# v and q are the measured variance and square of the gradient: a larger batch brings more per iteration, but
# less per example. A batch too large for memory is added up from smaller ones.

CLUSTER = "aws"
GPUS_PER_MACHINE = 4
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
EPOCHS = {"bert": 2, "cifar10": 100, "deepspeech2": 80, "imagenet": 90, "ncf": 10, "yolov3": 50}

Curve = list[tuple[int, float, float]]
"""(Local batch size, step seconds, synchronisation seconds), ascending."""


class SiaProfile:
    """One model's measurements, out of the archive of Sia's profiles."""

    def __init__(self, archive: tarfile.TarFile, model: str) -> None:
        self.model = model
        self._curves: dict[tuple[int, int], Curve] = {}
        for row in _rows(archive, f"traces/{model}/placements-{CLUSTER}.csv"):
            parts = [int(digit) for digit in row["placement"]]
            if parts == _packed(sum(parts)):
                self._add(len(parts), sum(parts), row)
        for row in _rows(archive, f"traces/{model}/scalability-{CLUSTER}.csv"):
            nodes, gpus = int(row["num_nodes"]), int(row["num_replicas"])
            if nodes == len(_packed(gpus)):
                self._add(nodes, gpus, row)
        for curve in self._curves.values():
            curve.sort()
        names = archive.getnames()
        prefix = f"traces/{model}/validation-"
        self._validation = {
            int(name.removeprefix(prefix).removesuffix(".csv")): list(_rows(archive, name))[: EPOCHS[model]]
            for name in names
            if name.startswith(prefix)
        }
        self.batches = tuple(sorted(self._validation))
        self._smallest_local = min(curve[0][0] for curve in self._curves.values())

    def _add(self, nodes: int, gpus: int, row: dict[str, str]) -> None:
        point = (int(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"]))
        self._curves.setdefault((nodes, gpus), []).append(point)

    def scaling(self) -> Scaling:
        """The pace on each size, at the best batch size, relative to one GPU."""
        best_s = {gpus: min(self._each_s(gpus), default=math.inf) for gpus in SIZES}
        pace = [(gpus, best_s[1] / best_s[gpus]) for gpus in SIZES if best_s[gpus] < math.inf]
        return tuple(pace)

    def _each_s(self, gpus: int) -> Iterator[float]:
        for batch in self.batches:
            seconds = self.seconds(gpus, batch)
            if seconds is not None:
                yield seconds

    def seconds(self, gpus: int, batch: int) -> float | None:
        """How long a whole training takes on this number of GPUs; None where nobody has measured it."""
        curve = self._curves.get((len(_packed(gpus)), gpus))
        local = math.ceil(batch / gpus)
        if curve is None or local < self._smallest_local:
            return None
        added = math.ceil(local / curve[-1][0]) - 1
        if gpus == 1 and batch > self.batches[0]:
            added = max(1, added)
        step_s, sync_s = _between(curve, math.ceil(local / (added + 1)))
        return self.iterations(batch) * (step_s + added * (step_s - sync_s))

    @cache  # noqa: B019 - a profile lives as long as the program that reads it
    def iterations(self, batch: int) -> float:
        """How many iterations a training takes at a batch size."""
        progress = [0.0] + [
            min(float(rows[epoch]["progress"]) for rows in self._validation.values())
            for epoch in range(EPOCHS[self.model])
        ]
        scale = batch / self.batches[0]
        total = 0.0
        for epoch, (before, after) in enumerate(pairwise(progress)):
            row = self._validation[batch][epoch]
            q, v = float(row["grad_sqr"]), float(row["grad_var"])
            total += (after - before) * (v / scale + q) / (v + q)
        return total


def _packed(gpus: int) -> list[int]:
    """GPUs by machine where a gang is closest together, the emptiest first, as the profiles name them."""
    whole, rest = divmod(gpus, GPUS_PER_MACHINE)
    return ([rest] if rest else []) + [GPUS_PER_MACHINE] * whole


def _between(curve: Curve, local: int) -> tuple[float, float]:
    """Interpolate between the two nearest batch sizes."""
    at = min(max(1, bisect_left(curve, (local, 0.0, 0.0))), len(curve) - 1)
    (low, low_step_s, low_sync_s), (high, high_step_s, high_sync_s) = curve[at - 1], curve[at]
    share = (local - low) / (high - low)
    return low_step_s + share * (high_step_s - low_step_s), low_sync_s + share * (high_sync_s - low_sync_s)


def _rows(archive: tarfile.TarFile, name: str) -> Iterator[dict[str, str]]:
    member = archive.extractfile(name)
    assert member is not None
    yield from csv.DictReader(io.TextIOWrapper(member))


RESNET18_BYTES = 4 * 11.7e6
GPUS = 8
AROUND = 2 * (GPUS - 1) / GPUS

GAVEL = {
    "lm": "LM (batch size 20)",
    "transformer": "Transformer (batch size 64)",
    "resnet18": "ResNet-18 (batch size 64)",
    "resnet50": "ResNet-50 (batch size 16)",
}
GAVEL_REFERENCE = "ResNet-18 (batch size 16)"
SIA = {"bert": 12, "deepspeech2": 20, "imagenet": 115, "ncf": 257, "yolov3": 8}
"""Local batch size each profile is taken at."""
SIA_REFERENCE = ("cifar10", 129)
PARAMETERS = {
    "vgg11": 132.9e6,
    "vgg16": 138.4e6,
    "vgg19": 143.7e6,
    "alexnet": 61.1e6,
    "googlenet": 6.6e6,
    "inception3": 23.8e6,
    "inception4": 42.7e6,
    "resnet101": 44.5e6,
    "resnet152": 60.2e6,
}
SKEWED = ("vgg11", "vgg16", "vgg19", "alexnet")
"""Models with one layer so large that its gradients cannot be sent while others are computed."""
HIDDEN_SHARE = 0.5
"""What the other models hide, after Sia's ResNet-50: about half of its 102 MB is exposed."""


def from_gavel(path: Path) -> list[TrainingModel]:
    """V100, 8 GPUs, consolidated against not."""
    rates = json.loads(gzip.decompress(path.read_bytes()))

    def step_s(kind: str, model: str) -> float:
        return 1.0 / float(rates[kind][repr((model, GPUS))]["null"])

    def excess_s(model: str) -> float:
        return max(0.0, step_s("v100_unconsolidated", model) - step_s("v100", model))

    bytes_per_s = AROUND * RESNET18_BYTES / excess_s(GAVEL_REFERENCE)
    return [
        TrainingModel(
            name=name,
            compute_s=step_s("v100", model),
            exposed_bytes=excess_s(model) * bytes_per_s / AROUND,
            source=f"Gavel V100, {model}",
        )
        for name, model in GAVEL.items()
    ]


def from_sia(path: Path) -> list[TrainingModel]:
    """Step times of A100s (dgx, 8 GPUs on one machine), exposed bytes and scaling from T4s (aws)."""
    with tarfile.open(path) as archive:

        def times(model: str, cluster: str, placement: str, batch: int) -> tuple[float, float]:
            member = archive.extractfile(f"traces/{model}/placements-{cluster}.csv")
            assert member is not None
            for row in csv.DictReader(io.TextIOWrapper(member)):
                if row["placement"] == placement and int(row["local_bsz"]) == batch:
                    return float(row["step_time"]), float(row["sync_time"])
            raise KeyError(f"{model} {cluster} {placement} {batch}")

        def excess_s(model: str, batch: int) -> float:
            return max(0.0, times(model, "aws", "44", batch)[1] - times(model, "aws", "4", batch)[1])

        bytes_per_s = AROUND * RESNET18_BYTES / excess_s(*SIA_REFERENCE)
        models = []
        for name, batch in SIA.items():
            step_s, sync_s = times(name, "dgx", "8", batch)
            models.append(
                TrainingModel(
                    name=name,
                    compute_s=step_s - sync_s,
                    exposed_bytes=excess_s(name, batch) * bytes_per_s / AROUND,
                    source=f"Sia A100 step, T4 4+4 synchronisation, batch {batch}",
                    scaling=SiaProfile(archive, name).scaling(),
                )
            )
    return models


def from_tiresias(source: str) -> list[TrainingModel]:
    """Compute time from durations and iterations of the 60-job trace; bytes from public parameter counts."""
    iterations = _iterations(source)
    steps: dict[str, list[float]] = {}
    for job in read_job_trace(source):
        steps.setdefault(job.model, []).append(job.service_s / iterations[job.id])
    return [
        TrainingModel(
            name=name,
            compute_s=median(steps[name]),
            exposed_bytes=4 * count * (1.0 if name in SKEWED else HIDDEN_SHARE),
            source="Tiresias 60-job trace, public parameter count",
        )
        for name, count in PARAMETERS.items()
    ]


def _iterations(source: str) -> dict[str, int]:
    path, _, member = source.partition("#")
    with tarfile.open(path) as archive:
        packed = archive.extractfile(member)
        assert packed is not None
        rows = csv.DictReader(io.TextIOWrapper(packed))
        return {row["job_id"]: int(row["iterations"]) for row in rows}


def derive_models(data: Path) -> list[TrainingModel]:
    """All models derivable from the data folder."""
    traces = data / "traces"
    return [
        *from_gavel(traces / "gavel_simulation_throughputs.json.gz"),
        *from_sia(traces / "sia_pollux_profiles_workloads.tar.gz"),
        *from_tiresias(f"{traces / 'tiresias_sim_inputs.tar.gz'}#60_job.csv"),
    ]


def fit_jobs(jobs: Sequence[Job]) -> tuple[dict[int, float], dict[int, list[float]], list[float]]:
    """Return shares of demands, quantiles of service by class of demand, and quantiles of gaps."""
    gpus = np.array([job.gpus for job in jobs])
    service_s = np.array([job.service_s for job in jobs])
    gaps_s = np.diff([job.arrival_s for job in jobs])
    demands = {int(g): float(np.mean(gpus == g)) for g in np.unique(gpus)}
    services: dict[int, list[float]] = {}
    lower = 0
    for upper in SERVICE_S:
        these = service_s[(gpus > lower) & (gpus <= upper)]
        services[upper] = np.quantile(these, QUANTILES).tolist()
        lower = upper
    return demands, services, np.quantile(gaps_s, QUANTILES).tolist()


def main() -> None:
    """Print the training models, and what generated jobs are drawn from, as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    data: Path = parser.parse_args().data
    demands, services, gaps_s = fit_jobs(read_job_trace(locate_trace("helios", data)))
    tables = {
        "models": msgspec.to_builtins(derive_models(data)),
        "demands": demands,
        "service_s": services,
        "gaps_s": gaps_s,
    }
    print(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
