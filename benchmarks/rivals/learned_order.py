"""A learned order of waiting jobs, in the spirit of RLTune: dally's machine, its levels shifted by a network.

    score = dally's level + Σ_k π_k(features) · shift_k,   lower runs first

rounded to quarters of a level; equal scores keep dally's order, and so zero weights are dally itself.
Whom a waiting job may stop is left to dally. Durations are not among the features.

    slim jobs compare --policies dally,benchmarks/rivals/learned_order.py:Rl
"""

import json
from collections.abc import Mapping
from functools import cache
from math import log1p, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.jobs.domain import Tier, Topology
from slimsched.jobs.policies.dally import Dally, ServiceHistory
from slimsched.jobs.scheduler.policy import Timers
from slimsched.jobs.scheduler.waiting import JobState, Key

Values = NDArray[np.float64]

MACHINE, RACK, NETWORK = Tier
SHIFTS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
"""Levels a waiting job can be moved by."""
STEP = 0.25
"""Scores closer than this count as equal."""


class Features(NamedTuple):
    """What is known of a waiting job and of the cluster, each brought to about 1."""

    level: float
    gpus: float
    share_of_cluster: float
    attained: float
    served: float
    waited: float
    preemptions: float
    slow_in_rack: float
    slow_across_racks: float
    network_duty: float
    needs_rack: float
    needs_network: float
    residual: float
    residual_of_demand: float
    utilization: float
    waiting_gpus: float
    waiting_jobs: float


class LearnedOrder(Dally):
    """Dally with a learned order; deterministic."""

    def __init__(self, weights: Mapping[str, Values]) -> None:
        super().__init__()
        self.use(weights)
        self._shifts = np.array(SHIFTS)
        self._running_gpus = 0
        self._backlog = 0.0
        self._services: dict[int, ServiceHistory] = {}

    def begin(self, topology: Topology) -> None:
        """Forget the jobs of before."""
        super().begin(topology)
        self._running_gpus = 0

    def use(self, weights: Mapping[str, Values]) -> None:
        """Take other weights from now on."""
        self._input, self._input_bias = weights["input.weight"].T, weights["input.bias"]
        self._hidden, self._hidden_bias = weights["hidden.weight"].T, weights["hidden.bias"]
        self._head, self._head_bias = weights["head.weight"].T, weights["head.bias"]

    def key(self, job: JobState, now_s: float) -> Key:
        """By score, then as dally does."""
        level, *rest = super().key(job, now_s)
        score = level + self.shift(job, self.features(job, level, now_s), now_s)
        return (STEP * round(score / STEP), *rest, level)

    def shift(self, job: JobState, features: Features, now_s: float) -> float:
        """The levels this job is moved by: the mean of the network's distribution."""
        return float(self.probabilities(features) @ self._shifts)

    def probabilities(self, features: Features) -> Values:
        """π(shift | features)."""
        x = np.tanh(np.array(features) @ self._input + self._input_bias)
        x = np.tanh(x @ self._hidden + self._hidden_bias)
        logits = x @ self._head + self._head_bias
        odds = np.exp(logits - logits.max())
        return np.asarray(odds / odds.sum())

    def features(self, job: JobState, level: float, now_s: float) -> Features:
        """Seconds by their logarithm, GPUs by doublings, the rest as shares."""
        alike = self._services.get(job.gpus)
        residual_s = self.tuner.residual_s(job.served_s)
        return Features(
            level=level / 6.0,
            gpus=log2(job.gpus) / 4.0,
            share_of_cluster=job.gpus / self._gpus,
            attained=log1p(job.gpus * job.served_s) / 12.0,
            served=log1p(job.served_s) / 10.0,
            waited=log1p(now_s - job.since_s) / 10.0,
            preemptions=log1p(job.preemptions) / 2.0,
            slow_in_rack=log2(job.slow[RACK]) / 2.0,
            slow_across_racks=log2(job.slow[NETWORK]) / 4.0,
            network_duty=job.network_duty,
            needs_rack=float(job.floor == RACK),
            needs_network=float(job.floor == NETWORK),
            residual=log1p(residual_s) / 10.0 - 0.8,
            residual_of_demand=log1p(alike.residual_s(job.served_s) if alike else residual_s) / 10.0 - 0.8,
            utilization=self._running_gpus / self._gpus,
            waiting_gpus=log1p(self._waiting_gpus / self._gpus),
            waiting_jobs=log1p(self._backlog),
        )

    def eviction_class(self, waiting: JobState) -> int:
        """By dally's level, not by the score: a job moved ahead passes others, but stops no more of them."""
        return int(waiting.key[-1])

    def timers(self, job: JobState, now_s: float, backlog: float) -> Timers:
        """Dally's; the backlog is a feature from then on."""
        self._backlog = backlog
        return super().timers(job, now_s, backlog)

    def launched(self, job: JobState, tier: Tier, declined_for_s: float, now_s: float) -> None:
        """Count the GPUs in use."""
        self._running_gpus += job.gpus
        super().launched(job, tier, declined_for_s, now_s)

    def left(self, job: JobState, tier: Tier, run_s: float, served_s: float | None) -> None:
        """Count the GPUs in use."""
        self._running_gpus -= job.gpus
        super().left(job, tier, run_s, served_s)

    def finished(self, job: JobState, service_s: float) -> None:
        """Remember what jobs of this demand take."""
        self._services.setdefault(job.gpus, ServiceHistory()).add(service_s)
        super().finished(job, service_s)


SHIPPED = Path(__file__).with_name("job-order.json")
"""The order beside this file."""


def write_order(path: Path, weights: Mapping[str, Values], story: dict[str, Any]) -> None:
    """Write the weights, and the story of their training."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = {name: np.round(value, 4).tolist() for name, value in weights.items()}
    path.write_text(json.dumps({**story, "features": Features._fields, "shifts": SHIFTS, "weights": rounded}))


@cache
def read_order(path: Path) -> dict[str, Values]:
    """Read the weights; those trained on other features are refused."""
    try:
        content = json.loads(path.read_text())
        if tuple(content["features"]) != Features._fields or tuple(content["shifts"]) != SHIFTS:
            raise ValueError("it was trained on other features")
        weights = {name: np.array(value, dtype=np.float64) for name, value in content["weights"].items()}
        LearnedOrder(weights).probabilities(Features(*[0.0] * len(Features._fields)))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"order {path.name} cannot be read ({error}); "
            "train it with: python benchmarks/rivals/learn_order.py"
        ) from None
    return weights


class Rl(LearnedOrder):
    """The learned order as a policy: the one beside this file, or one that `learn_order.py` trained."""

    def __init__(self, file: Path = SHIPPED) -> None:
        super().__init__(read_order(file))
