"""Derives training models from measured step times: Gavel's, Sia's and the iteration counts of Tiresias.

A gang's step on scattered GPUs takes longer than on one machine by the communication that computing does
not hide. On a ring over n GPUs at B bytes a second that excess is 2 (n − 1) / n · S / B; B is not stated by
the authors, so it is calibrated once for each source with ResNet-18, whose gradients are known (11.7 million
parameters of 4 bytes). S is then the model's exposed bytes. Negative excess counts as none.
"""

import csv
import gzip
import io
import json
import tarfile
from pathlib import Path
from statistics import median

from slimsched.jobs.domain.training_model import TrainingModel
from slimsched.jobs.traces.sia_profile import SiaProfile
from slimsched.jobs.traces.trace import read_job_trace

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
