"""What a router knows when it decides, and what it answers: the observation, the route, and estimates from
both.

The observation: everything a router knows when it decides, besides the static Cluster.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import START, Path
from slimsched.serving.domain.cluster import Cluster, ServerSnapshot
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Key, Request, Why, count_examples
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import SegmentFinished

LATENESS_S = 0.01
"""Added to times before they are compared, so that messages and scheduling steps count little."""

LATENESS_SHARE = 0.05
"""Weight of the last block in a server's lateness: it follows about the last twenty blocks."""


class Observation:
    """The head of the queue and the state of the servers; the gateway updates it in place.

    `outstanding` and `backlog_s` count what the gateway sent and has not got back. `lateness` says how much
    longer blocks took lately than their backlog and profile say. `utilization`, `power_w` and `queued` are
    the servers' last telemetry, which may be old.
    """

    def __init__(self, servers: int, models: int = 1) -> None:
        self.now_s = 0.0
        # the head: requests that could go as one block
        self.model = 0
        self.segment = 0
        self.previous = START
        self.source = -1  # where their inputs lie; -1: the gateway
        self.count = 0
        self.path: Path = ()  # the choices that the first of them has run at
        self.choices: tuple[int, ...] = ()  # the choices that may come next, narrowest first
        self.arrival_s = 0.0
        self.deadline_s = NEVER_S
        self.min_accuracy = 0.0
        self.plan = NO_PLAN  # the plan their senders stated, by number
        # the whole system
        self.plans = False  # whether to plan all remaining segments at once
        self.fifo = 0
        self.done = 0
        self.done_rate_per_s = 0.0
        self.active_w = 0.0  # energy of batches above idle, per second
        self.arrival_rate_per_s = 0.0
        self.model_rates_per_s: NDArray[np.float64] = np.zeros(models)
        self._rates_s = 0.0  # the time of the rates
        # the servers
        self.alive: NDArray[np.bool_] = np.ones(servers, dtype=bool)
        self.alive_ids: list[int] = list(range(servers))
        self.is_decided = (
            False  # whether the server is chosen already: the question is about the rest of a plan
        )
        self.penalty_s: NDArray[np.float64] = np.zeros(
            servers
        )  # infinite for servers that are down: add it to any cost
        self.outstanding: NDArray[np.float64] = np.zeros(servers)
        self.backlog_s: NDArray[np.float64] = np.zeros(servers)
        self.queued: NDArray[np.float64] = np.zeros(servers)
        self.utilization: NDArray[np.float64] = np.zeros(servers)
        self.power_w: NDArray[np.float64] = np.zeros(servers)
        self.vram_bytes: NDArray[np.float64] = np.zeros(servers)
        self.telemetry_s: NDArray[np.float64] = np.zeros(servers)
        self.lateness: NDArray[np.float64] = np.ones(servers)  # time that blocks took over time expected
        # what batches cost in service (`learned_cost.py`), per example
        self.slowdown: NDArray[np.float64] = np.ones(servers)  # factor on profiled times
        self.first_extra_s: NDArray[np.float64] = np.zeros(servers)  # what a batch's overhead adds
        self.further_extra_s: NDArray[np.float64] = np.zeros(servers)  # the same for plans after an answer

    def begin_step(self, now_s: float) -> None:
        """Bring the time and the rates up to date for a scheduling step."""
        self.now_s = now_s
        self._fade_rates(now_s)
        self._settle_rates()

    def arrived(self, requests: Sequence[Request], now_s: float) -> None:
        """Count requests in the arrival rates."""
        self._fade_rates(now_s)
        self.arrival_rate_per_s += count_examples(requests)
        if len(self.model_rates_per_s) > 1:
            for request in requests:
                self.model_rates_per_s[request.model] += request.count

    def count_arrivals(self, counts: Sequence[int], now_s: float) -> None:
        """Count requests of each model in the arrival rates."""
        self._fade_rates(now_s)
        self.arrival_rate_per_s += sum(counts)
        if len(self.model_rates_per_s) > 1:
            self.model_rates_per_s[: len(counts)] += counts

    def answered(self, count: int) -> None:
        """Count requests that were answered."""
        self.done += count
        self.done_rate_per_s += count

    def sent(self, server: int, count: int, work_s: float) -> float:
        """Count requests sent to a server, each with its work; return the server's backlog with them."""
        self.outstanding[server] += count
        backlog_s = float(self.backlog_s[server]) + work_s * count
        self.backlog_s[server] = backlog_s
        return backlog_s

    def least_backlog_s(self) -> float:
        """Return how long each server that is up has work for, at least."""
        return float(self.backlog_s[self.alive_ids].min()) if self.alive_ids else 0.0

    def came_back(self, server: int, count: int, work_s: float) -> None:
        """Count requests that a server has done."""
        self.outstanding[server] -= count
        self.backlog_s[server] = max(0.0, self.backlog_s[server] - work_s * count)

    def returned(self, server: int, took_s: float, expected_s: float) -> None:
        """Note how long a block took at a server, and how long it should have taken by profile."""
        ratio = (took_s + LATENESS_S) / (expected_s + LATENESS_S)
        self.lateness[server] += LATENESS_SHARE * (ratio - self.lateness[server])

    def _fade_rates(self, now_s: float) -> None:
        """Let past arrivals and answers count less: rates are means over about a second."""
        kept = exp(-(now_s - self._rates_s))
        self._rates_s = now_s
        self.arrival_rate_per_s *= kept
        self.done_rate_per_s *= kept
        self.active_w *= kept
        if len(self.model_rates_per_s) > 1:
            self.model_rates_per_s *= kept

    def _settle_rates(self) -> None:
        """Set the rate of a single model, which is not kept at each arrival."""
        if len(self.model_rates_per_s) == 1:
            self.model_rates_per_s[0] = self.arrival_rate_per_s

    def know_models(self, count: int) -> None:
        """Make room for models that were added."""
        self._settle_rates()
        more = count - len(self.model_rates_per_s)
        self.model_rates_per_s = np.append(self.model_rates_per_s, np.zeros(more))

    def set_alive(self, server: int, alive: bool) -> None:
        """Mark a server up or down."""
        self.alive[server] = alive
        self.penalty_s[server] = 0.0 if alive else inf
        self.alive_ids = [int(i) for i in np.flatnonzero(self.alive)]

    def note(self, server: int, snapshot: ServerSnapshot) -> None:
        """Copy what a server says about itself."""
        self.utilization[server] = snapshot.utilization
        self.power_w[server] = snapshot.power_w
        self.queued[server] = sum(snapshot.queued)
        self.vram_bytes[server] = snapshot.vram_bytes
        self.telemetry_s[server] = snapshot.taken_s

    def lose(self, server: int) -> None:
        """Mark a server down; what it had is gone."""
        self.set_alive(server, False)
        self.outstanding[server] = self.backlog_s[server] = 0.0
        self.utilization[server] = self.queued[server] = self.power_w[server] = 0.0
        self.lateness[server] = 1.0


# -- The interface between the gateway and a router.


class Route(Struct, frozen=True):
    """Send up to `group` requests of the head to `server`; run at `choice`, then go on there at `ahead`.

    `why` holds the numbers behind the reason, where the router has any.
    """

    server: int
    choice: int
    group: int
    reason: str = ""
    ahead: tuple[int, ...] = ()
    why: Why | None = None


class Router(Protocol):
    """Decides where requests run, at which choice and in which group.

    A router that is also an `AnswerListener` is told about answers. One that is also a `GoalFollower` can be
    given another goal.
    """

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue; None means wait."""
        ...


@runtime_checkable
class AnswerListener(Protocol):
    """A router that learns from answers."""

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """These requests were answered now; each stands for `count` examples."""
        ...


class Verdict(Struct, frozen=True, kw_only=True):
    """What to do with an answer: send it, or go on with another plan.

    `plan` is the number of the plan to go on with, -1 to send the answer. `sure` is the chance that the
    answer is right, `hope` the chance that the other plan's will be. `check` says that the other plan runs
    only to check the answer.
    """

    plan: int = -1
    sure: float
    hope: float = -1.0
    why: str
    check: bool = False


@runtime_checkable
class Judge(Protocol):
    """A router that decides, answer by answer, whether to stop or to go on with a wider plan."""

    def keeps(self, model: int) -> bool:
        """Whether answers of this model are judged, so that servers must keep activations."""
        ...

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        """Decide about the answer of a request whose plan is complete."""
        ...


@runtime_checkable
class GoalFollower(Protocol):
    """A router that follows a goal, which the operator may change."""

    def with_goal(self, goal: Goal) -> Router:
        """Return the same router with another goal."""
        ...


# -- Expected times of a choice: waiting, moving and running, from profiles and the gateway's own count.

Values = NDArray[np.float64]


class Estimate:
    """Expected times, as one vector over all servers, so that more servers cost little more."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.group = cluster.batch_limit
        self.hop_s = np.array([cluster.gateway_link.latency_s + link.latency_s for link in cluster.links])
        """Time a message takes between the gateway and each server."""
        self.run_s = lru_cache(maxsize=None)(self._run_s)
        self.rest_s = lru_cache(maxsize=None)(self._rest_s)
        self._ways = lru_cache(maxsize=None)(self._ways_on)
        empty_s = [self._empty_s(model.number) for model in cluster.active or cluster.models]
        self.empty_s = max(empty_s)
        """Roughly the latency of a request in an empty cluster, for the slowest model."""

    def move_s(self, seen: Observation) -> Values:
        """Time to move a block of the head to each server; infinite for servers that are down."""
        count = min(seen.count, self.group)
        moved_s = self.cluster.move_s(seen.model, seen.segment, seen.previous, seen.source, count)
        return moved_s + seen.penalty_s

    def wait_s(self, seen: Observation) -> Values:
        """Time until a block of the head could start on each server: the move plus the backlog."""
        return seen.backlog_s + self.move_s(seen)

    def widest_s(self, seen: Observation) -> Values:
        """Time of a full batch of the head's next segment at the widest choice, on each server."""
        return self.run_s(self._ways(seen.model, seen.path)[-1][1])

    def fitting_choice(self, seen: Observation, server: int, share: float) -> int:
        """Return the widest choice with which all remaining segments should end within a share of the slack.

        Each remaining segment should wait for one backlog and two messages, then run in a full batch.
        """
        slack_s = share * (seen.deadline_s - seen.now_s)
        rest = self.cluster.models[seen.model].segments - seen.segment
        waits_s = rest * (float(seen.backlog_s[server]) + 2 * float(self.hop_s[server]))
        ways = self._ways(seen.model, seen.path)
        for choice, _, longer in reversed(ways):
            if waits_s + self.rest_s(seen.model, longer, len(seen.path))[server] <= slack_s:
                return choice
        return ways[0][0]

    def _ways_on(self, model: int, path: Path) -> list[tuple[int, Key, Path]]:
        """List, for each choice after a path: the choice, its key, and a plan that stays at that choice."""
        served = self.cluster.models[model]
        tree, row = served.tree, served.tree.row[path]
        ways = []
        for child, choice in zip(tree.children[row], tree.choices[row], strict=True):
            key = served.row_keys[child]
            assert key is not None
            ways.append((int(choice), key, tree.stay((*path, int(choice)))))
        return ways

    def _run_s(self, key: Key) -> Values:
        """Time of a full batch of one segment alone on each server."""
        return np.array([p.latency_s(key, self.group) for p in self.cluster.profiles])

    def _rest_s(self, model: int, plan: Path, done: int) -> Values:
        """Time of full batches of a plan's segments after the first `done`, on each server."""
        keys = self.cluster.models[model].legs(plan)[done:]
        total: Values = np.sum([self.run_s(key) for key in keys], axis=0)
        return total

    def _empty_s(self, model: int) -> float:
        """Time of the hops and runs of a medium plan on a medium server."""
        middle = self.cluster.models[model].tree.middle
        hops_s = 2 * len(middle) * self.hop_s
        return float(np.median(hops_s) + np.median(self._rest_s(model, middle, 0)))


# -- The learned cost of batches: what a server's batches take in service, beside what its profile says.
#
#     busy = overhead_s + slowdown · profiled
#
# Both are fitted to the batches that a server has finished, by least squares of relative errors that forget.
# A
# profile is measured on an idle core with one key at a time; in service a batch also pays for messages, cold
# caches and neighbours. A batch that took far longer than expected counts only as far as `MOST` says, because
# a
# pause of the machine says little about the next batch. Where batches are too much alike to tell the two
# apart,
# all of it counts as slowdown.
#
# The overhead is paid once per batch. So what it adds to an example depends on how many share the batch,
# which
# is measured too: apart for first plans, and for plans that go on after an answer, whose batches are smaller.

KEPT = 0.99
"""What a batch still counts after the next one: about the last hundred batches decide."""

PRIOR = 20.0
"""How many batches that take as long as profiled are assumed at the start."""

SAME = 0.1
"""Batches whose profiled times differ by less than about this share do not show the overhead."""

MOST = 2.0
"""How many times slower than expected a batch counts at most."""

LEAST_SLOWDOWN = 0.5
"""No more of a batch's time than leaves this factor on its profile counts as overhead."""

FIRST_BATCH = 8.0
"""How many examples a batch is assumed to have before any has run."""


class _Sizes:
    """The mean number of examples in a batch; older batches fade."""

    def __init__(self) -> None:
        self._batches, self._examples = 1.0, FIRST_BATCH

    @property
    def mean(self) -> float:
        return self._examples / self._batches

    def note(self, examples: int) -> None:
        self._batches = KEPT * self._batches + 1.0
        self._examples = KEPT * self._examples + examples


class LearnedCost:
    """The cost of one server's batches.

    With u = 1 / profiled and r = busy / profiled, the equation is r = slowdown + overhead · u: a line.
    """

    def __init__(self) -> None:
        self.overhead_s = 0.0
        """Time that every batch takes, whatever it has to do."""
        self.slowdown = 1.0
        """Factor on the profiled time."""
        self._first, self._further = _Sizes(), _Sizes()
        self._weight = self._u = self._r = self._uu = self._ur = 0.0

    def note(self, profiled_s: float, busy_s: float, examples: int, *, further: bool) -> None:
        """Note a batch that took `busy_s`, and whether its examples had an answer before."""
        (self._further if further else self._first).note(examples)
        if profiled_s <= 0.0 or busy_s <= 0.0:
            return
        u = 1.0 / profiled_s
        r = min(busy_s * u, MOST * (self.slowdown + self.overhead_s * u))
        if not self._weight:
            self._weight, self._u, self._r = PRIOR, PRIOR * u, PRIOR
            self._uu, self._ur = PRIOR * u * u, PRIOR * u
        self._weight = KEPT * self._weight + 1.0
        self._u = KEPT * self._u + u
        self._r = KEPT * self._r + r
        self._uu = KEPT * self._uu + u * u
        self._ur = KEPT * self._ur + u * r
        self._fit()

    @property
    def first_s(self) -> float:
        """What the overhead adds to each example of a first plan."""
        return self.overhead_s / self._first.mean

    @property
    def further_s(self) -> float:
        """What the overhead adds to each example of a plan that goes on after an answer."""
        return self.overhead_s / self._further.mean

    def _fit(self) -> None:
        """Fit the line; as long as all batches are alike, it is level."""
        u, r = self._u / self._weight, self._r / self._weight
        spread = max(0.0, self._uu / self._weight - u * u) + (SAME * u) ** 2
        slope = (self._ur / self._weight - u * r) / spread
        self.overhead_s = min(max(0.0, slope), max(0.0, r - LEAST_SLOWDOWN) / u)
        self.slowdown = r - self.overhead_s * u


class ServiceCosts:
    """Learns the costs of all servers, and tells routers what they add (`Observation`).

    Nothing is learned of servers whose batches share the device: how long a batch takes there depends on its
    neighbours, and the profile knows about them.
    """

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self._seen = seen
        self.servers = [LearnedCost() if p.top_concurrency == 1 else None for p in cluster.profiles]

    def ran(self, event: SegmentFinished, cluster: Cluster) -> None:
        """Learn from a finished batch."""
        server, cost = event.server, self.servers[event.server]
        if cost is None or not event.size:
            return
        trail = event.blocks[0].requests[0].trail
        profiled_s = cluster.profiles[server].latency_s(event.key, event.size)
        cost.note(profiled_s, event.busy_s, event.size, further=trail is not None and bool(trail.tried))
        self._seen.slowdown[server] = cost.slowdown
        self._seen.first_extra_s[server] = cost.first_s
        self._seen.further_extra_s[server] = cost.further_s
