"""What Sia's authors measured of a model on T4s (`aws`, four per machine): steps, progress, and so its pace.

    seconds(g, B) = Σ over epochs (progress of the epoch / gain(B)) · seconds of an iteration(g, B)
    gain(B) = (v + q) / (v / scale + q),  scale = B / smallest B

v and q are the measured variance and square of the gradient: a larger batch brings more per iteration, but
less per example. A batch too large for memory is added up from smaller ones.
"""

import csv
import io
import math
import tarfile
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from slimsched.jobs.domain.training_model import Scaling

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
