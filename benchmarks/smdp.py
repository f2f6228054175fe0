"""How far Algorithm 1 is from the best batching rule for one server.

    python benchmarks/smdp.py [--scenario paper] [--server 0] [--plan widest] [--loads 0.1,0.3,0.5,0.7,0.9]

One instance per segment, whole plans, Poisson arrivals, batch times by profile without noise. A load is a
share of what the best batch size serves. κ is how many seconds of waiting a joule is worth. Figures are mean
latency in ms, energy per request in mJ, and mean batch size. "greedy" (Algorithm 1) and "best" are computed,
"run" means the local scheduler itself on a simulated device. Prints a Markdown table.

The best rule is the optimum of a semi-Markov decision process, which knows the rate, after Xu, Zhou and Niu,
"SMDP-Based Dynamic Batching for Improving Responsiveness and Energy Efficiency of Batch Services" (2025).
Requests arrive at random at the rate λ and wait for one instance. A decision is due
when a batch ends, and when a request arrives while the instance is idle. With n requests waiting it can

    start b of them:  takes l(b), costs n · l(b) + λ · l(b)² / 2 + κ · e(b), leaves n − b + Poisson(λ · l(b))
    wait:             takes 1 / λ, costs n / λ, leaves n + 1

l(b) is the time and e(b) the energy of a batch of b, and κ the seconds of waiting that a joule is worth. The
cost counts every request while it waits or runs. So the mean cost per request is its mean latency plus κ
times its energy.

The best rule is found by policy iteration: judge a rule by solving a linear system, improve it in every
state, and repeat until nothing changes. It takes a few rounds. The paper uses relative value iteration, which
finds the same rule.
"""

import argparse
from collections.abc import Sequence
from math import ceil, inf, sqrt

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.clock import Timeline
from slimsched.core.config import ConfigError
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key, Request, block_of, onward
from slimsched.serving.gateway.messages import BlockDropped, SegmentFinished
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.simulated.server import SimulatedServer

Values = NDArray[np.float64]
Sizes = NDArray[np.int64]
"""A rule: how many to start with n waiting, for n = 0, 1, …; 0 means wait."""

MOST_STATES = 700
"""Longest queue that is told apart, however close the load is to the capacity."""

ROUNDS = 100
"""Policy iteration ends long before this many rounds."""


class Cost(Struct, frozen=True, kw_only=True):
    """What a rule costs per request."""

    latency_s: float
    energy_j: float
    batch: float  # mean size of a batch


class BatchQueue:
    """One instance with arrivals at random: judges rules and finds the best one.

    `run_s` and `energy_j` are the time and the energy of batches of 1, 2, … requests. Queues longer than the
    last state count as that state. Each request beyond it costs the time in which a queue of that length is
    worked off: the "abstract cost" of the paper.
    """

    def __init__(
        self,
        rate_per_s: float,
        run_s: Sequence[float],
        energy_j: Sequence[float],
        joule_s: float = 0.0,
        *,
        states: int = 0,
    ) -> None:
        self.rate_per_s = rate_per_s
        self.joule_s = joule_s
        self.limit = len(run_s)  # the largest batch
        self._run_s = np.array(run_s, dtype=float)
        self._energy_j = np.array(energy_j, dtype=float)
        capacity_per_s = float((np.arange(1, self.limit + 1) / self._run_s).max())
        self.load = rate_per_s / capacity_per_s
        if not 0.0 < self.load < 1.0:
            raise ConfigError(
                f"{rate_per_s:g} requests/s cannot be served: the best batch size serves "
                f"{capacity_per_s:g}/s; give a lower rate"
            )
        enough = min(MOST_STATES, 4 * self.limit + ceil(20.0 / (1.0 - self.load)))
        self.states = states or enough  # the longest queue that is told apart
        self._slope_s = self.states / (capacity_per_s - rate_per_s)  # cost of one more than the longest
        self._chances = [_poisson(rate_per_s * one) for one in self._run_s]

    def greedy(self) -> Sizes:
        """Return the rule of Algorithm 1: start all that wait, at once."""
        return np.minimum(np.arange(self.states + 1), self.limit)

    def threshold(self, least: int) -> Sizes:
        """Return the rule that waits until `least` wait, and then starts all."""
        greedy = self.greedy()
        return np.where(greedy < least, 0, greedy)

    def best(self) -> Sizes:
        """Return the rule with the least mean cost."""
        sizes = self.greedy()
        for _ in range(ROUNDS):
            gain, values = self._judge(sizes)
            better = self._improve(sizes, gain, values)
            if np.array_equal(better, sizes):
                break
            sizes = better
        return sizes

    def cost(self, sizes: Sizes) -> Cost:
        """Return what a rule costs per request."""
        matrix = self._matrix(sizes)
        waits, energy, batches = self._costs(sizes, 1.0, 0.0), self._costs(sizes, 0.0, 1.0), sizes > 0
        per_s = np.linalg.solve(matrix, np.stack([waits, energy, batches], axis=1))[0]
        latency_s, energy_j, rate = (per_s / self.rate_per_s).tolist()
        return Cost(latency_s=latency_s, energy_j=energy_j, batch=1.0 / rate)

    def mean_cost_s(self, sizes: Sizes) -> float:
        """Return mean latency plus κ times energy, per request."""
        return self._judge(sizes)[0] / self.rate_per_s

    def _judge(self, sizes: Sizes) -> tuple[float, Values]:
        """Solve  h(n) + g · time(n) = cost(n) + Σ p(n → m) h(m),  h(0) = 0;  return g and h."""
        values = np.linalg.solve(self._matrix(sizes), self._costs(sizes, 1.0, self.joule_s)).astype(
            np.float64
        )
        gain = float(values[0])
        values[0] = 0.0
        return gain, values

    def _improve(self, sizes: Sizes, gain: float, values: Values) -> Sizes:
        """Return, for each state, the size with the least cost − g · time + Σ p h; ties stay as they are."""
        count = np.arange(self.states + 1)
        scores = np.full((self.limit + 1, len(count)), np.inf)  # (size, waiting)
        waiting = count[: self.limit]
        scores[0, : self.limit] = (waiting - gain) / self.rate_per_s + values[1 : self.limit + 1]
        for size, (run_s, chances) in enumerate(zip(self._run_s, self._chances, strict=True), start=1):
            beyond = values[-1] + self._slope_s * np.arange(1, len(chances))
            after = np.correlate(np.concatenate([values, beyond]), chances, "valid")
            start = self._start_cost(count[size:], size, 1.0, self.joule_s) - gain * run_s
            scores[size, size:] = start + after[: self.states + 1 - size]
        best = scores.argmin(axis=0)
        kept = scores[sizes, count] <= scores[best, count] + 1e-9 * np.abs(scores[best, count])
        return np.where(kept, sizes, best)

    def _matrix(self, sizes: Sizes) -> Values:
        """Return I − P of a rule, with the times in its first column, where h(0) = 0 leaves room for g."""
        states = self.states
        chance = np.zeros((states + 1, states + 1))
        times = np.empty(states + 1)
        for waiting, size in enumerate(sizes):
            if size == 0:
                chance[waiting, waiting + 1] = 1.0
                times[waiting] = 1.0 / self.rate_per_s
                continue
            chances, left = self._chances[size - 1], waiting - size
            room = min(len(chances), states - left)
            chance[waiting, left : left + room] = chances[:room]
            chance[waiting, states] += max(0.0, 1.0 - chances[:room].sum())
            times[waiting] = self._run_s[size - 1]
        matrix: Values = np.eye(states + 1) - chance
        matrix[:, 0] = times
        return matrix

    def _costs(self, sizes: Sizes, waiting_weight: float, joule_s: float) -> Values:
        """Return the cost of each state until the next decision, with what waits beyond the last state."""
        costs = np.empty(len(sizes))
        for waiting, size in enumerate(sizes):
            if size == 0:
                costs[waiting] = waiting_weight * waiting / self.rate_per_s
                continue
            chances = self._chances[size - 1]
            beyond = np.maximum(0, waiting - size + np.arange(len(chances)) - self.states)
            costs[waiting] = self._start_cost(np.array([waiting]), size, waiting_weight, joule_s)[0]
            costs[waiting] += waiting_weight * self._slope_s * float(chances @ beyond)
        return costs

    def _start_cost(self, waiting: Sizes, size: int, waiting_weight: float, joule_s: float) -> Values:
        run_s, energy_j = float(self._run_s[size - 1]), float(self._energy_j[size - 1])
        waits_s = waiting.astype(np.float64) * run_s + 0.5 * self.rate_per_s * run_s**2
        return waiting_weight * waits_s + joule_s * energy_j


def least_to_start(sizes: Sizes) -> int:
    """Return how many must wait before a rule starts a batch."""
    return int(np.flatnonzero(sizes)[0])


def _poisson(mean: float) -> Values:
    """Return the chances of 0, 1, 2, … arrivals, as far as they matter."""
    count = np.arange(int(mean + 10.0 * sqrt(mean) + 20.0))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(count[1:]))])
    chances: Values = np.exp(count * np.log(mean) - mean - log_factorial)
    chances /= chances.sum()
    return chances


class Ended:
    """Takes what a server reports: when each request ended, and the energy of its batches."""

    def __init__(self, count: int) -> None:
        self.end_s = np.full(count, np.nan)
        self.energy_j = 0.0
        self.batches = 0

    def report(self, event: SegmentFinished | BlockDropped) -> None:
        """Take one report."""
        assert isinstance(event, SegmentFinished), "nothing is dropped: there are no deadlines"
        for block in event.blocks:
            self.end_s[[request.id for request in block.requests]] = event.finished_s
        self.energy_j += event.energy_j
        self.batches += 1


def simulate(
    key: Key, profile: Profile, model: ServedModel, options: SchedulerOptions, arrivals_s: Sequence[float]
) -> Cost:
    """Run the local scheduler on these arrivals, and return what it costs per request."""
    timeline, ended = Timeline(), Ended(len(arrivals_s))
    server = SimulatedServer(
        index=0,
        name="server",
        profile=profile,
        models=[model],
        options=options,
        timeline=timeline,
        report=ended.report,
        observers=[],
    )
    server.start(warm=True)
    for number, at_s in enumerate(arrivals_s):
        request = Request(id=number, arrival_s=at_s)
        timeline.at(at_s, server.receive, block_of(number, key, (request,)))
    while timeline.next_s() < inf:
        timeline.advance()
    count = len(arrivals_s)
    return Cost(
        latency_s=float(np.mean(ended.end_s - np.array(arrivals_s))),
        energy_j=ended.energy_j / count,
        batch=count / ended.batches,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="paper")
    parser.add_argument("--server", type=int, default=0)
    parser.add_argument("--plan", choices=("widest", "narrowest"), default="widest")
    parser.add_argument("--loads", default="0.1,0.3,0.5,0.7,0.9")
    parser.add_argument("--joules", default="0,0.2,1")
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=100)
    given = parser.parse_args()
    scenario = load_scenario(given.scenario, accuracy="paper")
    model, profile = scenario.cluster.models[0], scenario.cluster.profiles[given.server]
    plan = model.spec.widest if given.plan == "widest" else model.spec.narrowest
    key = onward(model.legs(plan)[0], tuple(plan[1:]))
    limit = scenario.cluster.batch_limit
    sizes = range(1, limit + 1)
    run_s = [profile.latency_s(key, size) for size in sizes]
    energy_j = [profile.energy_j(key, size) for size in sizes]
    capacity_per_s = max(size / one for size, one in zip(sizes, run_s, strict=True))
    print(f"{profile.name}, {given.plan} plan, batches up to {limit}, {capacity_per_s:,.0f}/s at most\n")
    print("| load | κ | starts at | greedy | best | could save | greedy, run |")
    print("|---|---|---|---|---|---|---|")
    names = {choices[one] for choices, one in zip(model.spec.segments, plan, strict=True)}
    plain = SchedulerOptions(batch_limit=limit, scale_trigger=given.requests, resident=tuple(sorted(names)))
    for load in [float(text) for text in given.loads.split(",")]:
        rng, rate_per_s = np.random.default_rng(given.seed), load * capacity_per_s
        arrivals_s = np.cumsum(rng.exponential(1.0 / rate_per_s, given.requests)).tolist()
        ran = simulate(key, profile, model, plain, arrivals_s)
        for joule_s in [float(text) for text in given.joules.split(",")]:
            queue = BatchQueue(rate_per_s, run_s, energy_j, joule_s)
            rule = queue.best()
            greedy, best = queue.cost(queue.greedy()), queue.cost(rule)
            cells = [f"{100 * load:.0f} %", f"{joule_s:g}", f"{least_to_start(rule)}"]
            cells += [_figures(greedy), _figures(best), _saved(greedy, best, joule_s)]
            cells += [_figures(ran)]
            print(f"| {' | '.join(cells)} |", flush=True)


def _figures(cost: Cost) -> str:
    return f"{1e3 * cost.latency_s:.2f}, {1e3 * cost.energy_j:.0f}, {cost.batch:.1f}"


def _saved(before: Cost, after: Cost, joule_s: float) -> str:
    """Return how much of the cost, mean latency plus κ times energy, is saved."""
    first, then = (one.latency_s + joule_s * one.energy_j for one in (before, after))
    return f"{100 * (1.0 - then / first):.1f} %"


if __name__ == "__main__":
    main()
