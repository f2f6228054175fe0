"""A rollout: advances a simulated cluster step by step and rewards every block that comes back.

Reward (7), block by block:  r = α·p_acc − β·L − γ·P̄·L − δ·Var(U) + b·(requests / B_max) − price·cost
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from slimsched.core.statistics import follow
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Block, Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import SegmentFinished, SendBlock
from slimsched.serving.gateway.observation import Observation, Router
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import SimulatedCluster


class RewardWeights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The weights of eq. (7): α, β, γ, δ, b. `centre` is subtracted from the accuracy (p̄ in the paper)."""

    accuracy: float = 1.0  # α
    latency_per_s: float = 1.0  # β
    energy_per_j: float = 0.0  # γ
    imbalance: float = 0.0  # δ
    bonus: float = 0.03  # b, for a full block; without it, blocks of one request would be fastest
    price: float = 0.0  # of the device time of a full block at the widest choice
    centre: float = 0.0


class Outcome(Struct, frozen=True):
    """A block that came back, or was unfinished when its episode ended, and the terms of its reward."""

    decision: int
    accuracy: float  # p_acc
    latency_s: float  # L_t
    energy_j: float  # E_t = P̄_t · L_t
    imbalance: float  # Var(U)
    fullness: float = 1.0  # requests / B_max
    cost: float = 0.0  # see `_Out.cost`
    caused_s: float = 0.0  # waiting that each request of the block caused for those behind it
    met_s: float = 0.0  # waiting for those before it, which is part of its latency
    moved_s: float = 0.0  # time that its inputs need on an idle link

    def reward(self, weights: RewardWeights) -> float:
        """Return the reward of eq. (7)."""
        return (
            weights.accuracy * (self.accuracy - weights.centre)
            - weights.latency_per_s * self.latency_s
            - weights.energy_per_j * self.energy_j
            - weights.imbalance * self.imbalance
            + weights.bonus * self.fullness
            - weights.price * self.cost
        )


class _Out(Struct):
    """A block at a server, of which `left` requests are not back."""

    sent_s: float
    left: int
    server: int
    block: Block
    moved_s: float

    def cost(self, cluster: Cluster) -> float:
        """Return the block's device time over that of a full one at the widest choice, by mean profile."""
        key = self.block.key.legs[0]
        last = len(cluster.models[key.model].spec.segments[key.segment]) - 1
        widest_s = cluster.work_s.get(key.at(last), cluster.work_s[key])
        return self.block.examples / cluster.batch_limit * float(cluster.work_s[key].mean() / widest_s.mean())


class OutcomeRecorder:
    """Follows blocks from decision to return. Decision n of a router is block n + 1 of its gateway."""

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self.outcomes: list[Outcome] = []
        self._cluster, self._seen = cluster, seen
        self._out: dict[int, _Out] = {}
        self._pace = [Pace() for _ in cluster.names]

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Note the blocks that leave and the blocks that come back."""
        if machine != GATEWAY_NAME:
            return
        if isinstance(event, SegmentFinished):
            device_s = self._pace[event.server].device_s(event) / event.size
            for number, block in enumerate(event.blocks):
                out = self._out.get(block.id)
                if out is None:
                    continue
                out.left -= block.examples
                if out.left <= 0:
                    del self._out[block.id]
                    caused_s = device_s * float(self._seen.outstanding[event.server])
                    met_s = event.queue_s[number] if event.queue_s else 0.0
                    self._record(out, (event.choice, *event.ahead), now_s, caused_s, met_s)
        for command in commands:
            if isinstance(command, SendBlock):
                block = command.block
                key, size = block.key, block.examples
                move_s = self._cluster.move_s(key.model, key.segment, key.previous, command.source, size)
                moved_s = float(move_s[command.server])
                self._out[block.id] = _Out(now_s, size, command.server, block, moved_s)

    def give_up(self, now_s: float) -> None:
        """Score the blocks that have not come back by the time they have taken so far."""
        for out in self._out.values():
            device_s = self._pace[out.server].usual_s
            key, behind = out.block.key, float(self._seen.outstanding[out.server])
            self._record(out, (key.choice, *key.ahead), now_s, device_s * behind, 0.0)
        self._out.clear()

    def _record(self, out: _Out, choices: Path, now_s: float, caused_s: float, met_s: float) -> None:
        seen, block, latency_s = self._seen, out.block, now_s - out.sent_s
        self.outcomes.append(
            Outcome(
                block.id - 1,
                prior(self._cluster.models[block.key.model], block.requests, choices),
                latency_s,
                float(seen.power_w.mean()) * latency_s,
                float(np.var(seen.utilization)),
                block.examples / self._cluster.batch_limit,
                out.cost(self._cluster),
                caused_s,
                met_s,
                out.moved_s,
            )
        )


LAST_BATCH = 0.02
"""What the last batch counts in a pace."""


class Pace:
    """How much of a server's device each batch had to itself, measured by how quickly batches follow.

    Batches that run side by side each take longer. What a batch takes from those behind it is its time times
    the share of the device that it had: the mean time between two ends over the mean time of a batch.
    """

    def __init__(self) -> None:
        self._usual_s = follow(0.0, LAST_BATCH)
        self._ended_s = 0.0
        self._busy_s, self._gap_s = follow(1e-9, LAST_BATCH), follow(1e-9, LAST_BATCH)

    @property
    def usual_s(self) -> float:
        """Device time per request, over about the last 50 batches."""
        return self._usual_s.mean

    def device_s(self, event: SegmentFinished) -> float:
        """Return the device time of a batch that ended now."""
        gap_s = min(event.busy_s, max(0.0, event.finished_s - self._ended_s))
        self._ended_s = event.finished_s
        self._busy_s.note(event.busy_s)
        self._gap_s.note(gap_s)
        device_s = event.busy_s * min(1.0, self._gap_s.mean / self._busy_s.mean)
        self._usual_s.note(device_s / event.size)
        return device_s


def prior(model: ServedModel, requests: Sequence[Request], choices: Path) -> float:
    """Return p_acc: the accuracy expected after these choices; of a complete plan, the correct share."""
    quality, first = model.quality, (*requests[0].path, *choices)
    if not model.tree.is_plan(first):
        return quality.expected(first)
    correct = [quality.is_correct((*request.path, *choices), request.example) for request in requests]
    known = [hit for hit in correct if hit is not None]
    return sum(known) / len(known) if known else quality.accuracy(first)


class Rollout:
    """One episode of a scenario under a router."""

    def __init__(self, scenario: Scenario, router: Router, *, seed: int) -> None:
        cluster = scenario.cluster
        self.gateway = Gateway(cluster, router, scenario.gateway)
        self.recorder = OutcomeRecorder(cluster, self.gateway.seen)
        stream = scenario.load.stream(seed, cluster.models, shares=scenario.shares)
        self.simulated = SimulatedCluster(
            scenario, self.gateway, stream, seed=seed, observers=(self.recorder,)
        )
        self.now_s = 0.0
        self.ends_s = scenario.load.seconds

    @property
    def is_over(self) -> bool:
        """Whether the episode is over."""
        return self.now_s >= self.ends_s

    def advance(self, seconds: float) -> list[Outcome]:
        """Simulate this much time; return the blocks that came back, and at the end all that did not."""
        self.recorder.outcomes.clear()
        self.now_s = min(self.ends_s, self.now_s + seconds)
        self.simulated.run(self.now_s)
        if self.is_over:
            self.recorder.give_up(self.now_s)
        return list(self.recorder.outcomes)
