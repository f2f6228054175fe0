"""A rollout: advances a simulated cluster step by step and rewards every block that comes back.

Reward (7), block by block:  r = α·p_acc − β·L − γ·P̄·L − δ·Var(U) + b·(requests / B_max)
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.domain.request import Request
from slimsched.serving.domain.served_model import ServedModel
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.cluster import SimulatedCluster
from slimsched.serving.routing.commands import SendBlock
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.routing.gateway import Gateway
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Router
from slimsched.serving.telemetry.meter import Meter


class RewardWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights of eq. (7): α, β, γ, δ, b. `centre` is subtracted from the accuracy (p̄ in the paper)."""

    accuracy: float = 1.0  # α
    latency_per_s: float = 1.0  # β
    energy_per_j: float = 0.0  # γ
    imbalance: float = 0.0  # δ
    bonus: float = 0.03  # b, for a full block; without it, blocks of one request would be fastest
    centre: float = 0.0


class Outcome(Struct, frozen=True):
    """A block that came back: the decision that sent it, and the terms of its reward."""

    decision: int
    accuracy: float  # p_acc
    latency_s: float  # L_t
    energy_j: float  # E_t = P̄_t · L_t
    imbalance: float  # Var(U)
    fullness: float = 1.0  # requests / B_max

    def reward(self, weights: RewardWeights) -> float:
        """Return the reward of eq. (7)."""
        return (
            weights.accuracy * (self.accuracy - weights.centre)
            - weights.latency_per_s * self.latency_s
            - weights.energy_per_j * self.energy_j
            - weights.imbalance * self.imbalance
            + weights.bonus * self.fullness
        )


class OutcomeRecorder:
    """Follows blocks from decision to return. Decision n of a router is block n + 1 of its gateway."""

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self.outcomes: list[Outcome] = []
        self._models = cluster.models
        self._seen = seen
        self._batch_limit = cluster.batch_limit
        self._out: dict[int, tuple[float, int, int]] = {}  # block → (sent at, requests not back, size)

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Note the blocks that leave and the blocks that come back."""
        if machine != GATEWAY_NAME:
            return
        if isinstance(event, SegmentFinished):
            for block in event.blocks:
                sent = self._out.pop(block.id, None)
                if sent is None:
                    continue
                left = sent[1] - len(block.requests)
                if left > 0:
                    self._out[block.id] = (sent[0], left, sent[2])
                else:
                    self._record(block.id, block.requests, event.choice, now_s - sent[0], sent[2])
        for command in commands:
            if isinstance(command, SendBlock):
                size = len(command.block.requests)
                self._out[command.block.id] = (now_s, size, size)

    def _record(
        self, block: int, requests: Sequence[Request], choice: int, latency_s: float, size: int
    ) -> None:
        seen = self._seen
        self.outcomes.append(
            Outcome(
                block - 1,
                prior(self._models[requests[0].model], requests, choice),
                latency_s,
                float(seen.power_w.mean()) * latency_s,
                float(np.var(seen.utilization)),
                size / self._batch_limit,
            )
        )


def prior(model: ServedModel, requests: Sequence[Request], choice: int) -> float:
    """Return p_acc: the accuracy expected after these choices; of a complete plan, the correct share."""
    quality, first = model.quality, (*requests[0].path, choice)
    if not model.tree.is_plan(first):
        return quality.expected(first)
    correct = [quality.is_correct((*request.path, choice), request.example) for request in requests]
    known = [hit for hit in correct if hit is not None]
    return sum(known) / len(known) if known else quality.accuracy(first)


class Rollout:
    """One episode of a scenario under a router."""

    def __init__(self, scenario: Scenario, router: Router, *, seed: int) -> None:
        cluster = scenario.cluster
        self.gateway = Gateway(cluster, router, scenario.gateway)
        self.recorder = OutcomeRecorder(cluster, self.gateway.seen)
        self.meter = Meter(cluster.models)
        self.simulated = SimulatedCluster(
            cluster=cluster,
            gateway=self.gateway,
            schedulers=scenario.schedulers,
            stream=scenario.load.stream(seed, cluster.models, shares=scenario.shares),
            telemetry=scenario.telemetry,
            faults=scenario.faults,
            observers=(self.recorder, self.meter),
        )
        self.now_s = 0.0
        self.ends_s = scenario.load.seconds

    @property
    def is_over(self) -> bool:
        """Whether the episode is over."""
        return self.now_s >= self.ends_s

    def advance(self, seconds: float) -> list[Outcome]:
        """Simulate this much time and return the blocks that came back."""
        self.recorder.outcomes.clear()
        self.now_s = min(self.ends_s, self.now_s + seconds)
        self.simulated.run(self.now_s)
        return list(self.recorder.outcomes)
