"""Trains the policy that sees the head on live servers, behind the guard.

Servers start once. The first round is in shadow mode: the fallback router decides, and the policy is only
compared with it. In every later round the policy decides behind its guard, and learns from what it decided
before the next round begins. Blocks are planned segment by segment, so that each decision has its own reward.
"""

from collections.abc import Callable, Sequence
from random import Random
from time import monotonic

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.execution.live.example_set import ExampleSet
from slimsched.serving.execution.live.kept_engine import KeptEngine
from slimsched.serving.execution.live.local_engine import LocalEngine
from slimsched.serving.execution.live.run import run_live, specs_of
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.head_policy import HeadPolicy
from slimsched.serving.learning.ppo import PpoTrainer
from slimsched.serving.learning.rollout import OutcomeRecorder
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.guard import GuardedRouter
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route, Router
from slimsched.serving.routing.routers.drift_plus_penalty import DriftPlusPenaltyRouter
from slimsched.serving.routing.routers.ppo_head import HeadDecision, HeadPpoRouter

FALLBACK_V = 0.5
"""The guard's fallback is drift-plus-penalty with this V."""


class LiveRound(Struct, frozen=True, kw_only=True):
    """One round of training: what was decided, by whom, and how it went."""

    number: int
    shadow: bool
    decisions: int  # that were learned from
    guard: dict[str, int]
    reward: float
    accuracy: float
    latency_mean_s: float
    latency_p99_s: float


class _Student:
    """A guarded router that remembers which block came of which decision of the policy, if of any."""

    def __init__(self, cluster: Cluster, policy: HeadPolicy, rng: Random, *, shadow: bool) -> None:
        self.learned: HeadPpoRouter = policy.router(cluster, rng, 0.0)
        fallback = DriftPlusPenaltyRouter(cluster, rng, v=FALLBACK_V)
        self.guard = GuardedRouter(self.learned, fallback, shadow=shadow)
        self.recorder: OutcomeRecorder | None = None
        self.by_block: list[HeadDecision | None] = []
        self._cluster = cluster

    def route(self, seen: Observation) -> Route | None:
        """Decide behind the guard."""
        if self.recorder is None:
            self.recorder = OutcomeRecorder(self._cluster, seen)
        before = self.guard.counts["learned"]
        route = self.guard.route(seen)
        decisions = self.learned.decisions
        assert decisions is not None
        if route is not None:
            self.by_block.append(decisions[-1] if self.guard.counts["learned"] > before else None)
        return route

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Follow blocks from decision to return."""
        if self.recorder is not None:
            self.recorder.observe(now_s, machine, event, commands)


async def train_live(
    scenario: Scenario,
    trainer: PpoTrainer,
    policy: HeadPolicy,
    examples: Sequence[ExampleSet],
    *,
    seed: int,
    report: Callable[[LiveRound], None],
) -> None:
    """Run one round in shadow mode, then as many rounds as the trainer has updates to do."""
    scenario = replace(scenario, gateway=replace(scenario.gateway, plan="segment"))
    zero_s = monotonic()
    engine = KeptEngine(LocalEngine(specs_of(scenario, zero_s)))
    await engine.open()
    try:
        for number in range(trainer.options.updates + 1):
            student = _Student(scenario.cluster, policy, Random(seed + number), shadow=number == 0)

            def make(spec: str, cluster: Cluster, seed: int, goal: Goal | None) -> Router:
                return student  # noqa: B023 - used within this round

            run = await run_live(
                scenario,
                "ppo",
                examples,
                seed=seed + number,
                observers=(student,),
                make=make,
                engine=engine,
                clock_zero_s=zero_s,
            )
            decisions, rewards = _scored(student, policy)
            if decisions and number:
                trainer.learn_from(decisions, [rewards])
            row = run.trace.summary
            report(
                LiveRound(
                    number=number,
                    shadow=number == 0,
                    decisions=len(decisions) if number else 0,
                    guard=dict(student.guard.counts),
                    reward=float(rewards.mean()) if len(rewards) else 0.0,
                    accuracy=row.accuracy if run.accuracy is None else run.accuracy,
                    latency_mean_s=row.latency_mean_s,
                    latency_p99_s=row.latency_p99_s,
                )
            )
    finally:
        await engine.close()


def _scored(
    student: _Student, policy: HeadPolicy
) -> tuple[list[HeadDecision], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return the policy's decisions whose blocks came back, and their rewards."""
    outcomes = [] if student.recorder is None else student.recorder.outcomes
    pairs = [
        (student.by_block[out.decision], out) for out in outcomes if out.decision < len(student.by_block)
    ]
    own = [(decision, out) for decision, out in pairs if decision is not None]
    decisions = [decision for decision, _ in own]
    return decisions, policy.rewards(student.learned, decisions, [out for _, out in own])
