"""What a router knows when it decides, besides the cluster, and what it answers: observation and route.

Also the estimates that routers share: how long a choice takes on each server, and how fast servers are.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf
from operator import attrgetter
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.models.spec import START, Path
from slimsched.serving.domain.cluster import GATEWAY, Cluster, ServerSnapshot, Values
from slimsched.serving.domain.profile import ServerSpeed
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Key, Request, Why, count_examples
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import SegmentFinished


class Head(Struct, frozen=True):
    """Requests that could go as one block: what they need next, and what the first of them asks for."""

    model: int = 0  # the number of their model
    segment: int = 0  # the segment that comes next
    previous: int = START  # the choice of the segment before
    source: int = GATEWAY  # where their inputs lie
    count: int = 0  # how many examples they have
    path: Path = ()  # the choices that the first of them has run at
    choices: tuple[int, ...] = ()  # the choices that may come next, narrowest first
    arrival_s: float = 0.0  # when the first of them arrived
    deadline_s: float = NEVER_S  # when its answer must be there
    min_accuracy: float = 0.0  # the accuracy that it asks for
    plan: int = NO_PLAN  # the plan that their senders stated, by number


_fields_of_head = attrgetter(*Head.__struct_fields__)


class Observation:
    """The head of the queue and the state of the servers; the gateway updates it in place.

    The fields of the head are attributes of the observation: `look_at` sets them. What is known of servers
    comes as vectors, one value per server. Telemetry may be old; what the gateway counts is not.
    """

    def __init__(self, servers: int, models: int = 1) -> None:
        self.now_s = 0.0
        """The time of the decision."""
        self.look_at(Head())
        self.is_decided = False
        """Whether the server is chosen already: the question is about the rest of a plan."""
        # the whole system
        self.plans = False
        """Whether to plan all remaining segments at once."""
        self.fifo = 0
        """Examples that wait in the queue."""
        self.done = 0
        """Examples answered since the start."""
        self.done_rate_per_s = 0.0
        """Examples answered per second, over about the last second; so are the three rates below."""
        self.active_w = 0.0
        """Energy of batches above idle, per second."""
        self.arrival_rate_per_s = 0.0
        """Examples that arrive per second, those included that are refused."""
        self.model_rates_per_s: Values = np.zeros(models)
        """The same by model; with a single model it is brought up to date at scheduling steps only."""
        self._rates_s = 0.0  # the time of the rates
        # the servers
        self.alive: NDArray[np.bool_] = np.ones(servers, dtype=bool)
        """Whether each server takes work."""
        self.alive_ids: list[int] = list(range(servers))
        """The numbers of those that do; another list whenever that changes."""
        self.penalty_s: Values = np.zeros(servers)
        """Infinite for servers that are out of the question: add it to any cost."""
        self.outstanding: Values = np.zeros(servers)
        """Examples that the gateway sent and has not got back."""
        self.backlog_s: Values = np.zeros(servers)
        """Their work, in device time by profile."""
        self.lateness: Values = np.ones(servers)
        """Time that blocks took lately over the time expected by backlog and profile (`ServerSpeed`)."""
        self.slowdown: Values = np.ones(servers)
        """What batches take in service: the factor on profiled times …"""
        self.first_extra_s: Values = np.zeros(servers)
        """… what a batch's overhead adds to each of its examples …"""
        self.further_extra_s: Values = np.zeros(servers)
        """… and the same for plans that go on after an answer."""
        self.queued: Values = np.zeros(servers)
        """Requests that wait at the server, by its last telemetry."""
        self.utilization: Values = np.zeros(servers)
        """Share of the time that the device worked, by its last telemetry."""
        self.power_w: Values = np.zeros(servers)
        """Power by its last telemetry."""
        self.vram_bytes: Values = np.zeros(servers)
        """Memory of the device in use, by its last telemetry."""
        self.telemetry_s: Values = np.zeros(servers)
        """When that telemetry was taken."""

    @property
    def head(self) -> Head:
        """The head as one value."""
        return Head(*_fields_of_head(self))

    def look_at(self, head: Head) -> None:
        """Ask about this head from now on."""
        self.model, self.segment, self.previous = head.model, head.segment, head.previous
        self.source, self.count, self.path = head.source, head.count, head.path
        self.choices, self.plan = head.choices, head.plan
        self.arrival_s, self.deadline_s = head.arrival_s, head.deadline_s
        self.min_accuracy = head.min_accuracy

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


@runtime_checkable
class AnswerListener(Protocol):
    """A router that learns from answers."""

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """These requests were answered now; each stands for `count` examples."""


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

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        """Decide about the answer of a request whose plan is complete."""


@runtime_checkable
class GoalFollower(Protocol):
    """A router that follows a goal, which the operator may change."""

    def with_goal(self, goal: Goal) -> Router:
        """Return the same router with another goal."""


class Estimate:
    """Expected times of a choice: waiting, moving and running, from profiles and the gateway's own count.

    Each is one vector over all servers, so that more servers cost little more.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.group = cluster.batch_limit
        self.hop_s = np.array([cluster.gateway_link.latency_s + link.latency_s for link in cluster.links])
        """Time a message takes between the gateway and each server."""
        self.run_s = lru_cache(maxsize=None)(self._run_s)
        self.rest_s = lru_cache(maxsize=None)(self._rest_s)
        self._ways = lru_cache(maxsize=None)(self._ways_on)
        self.empty_s = 0.0
        """Roughly the latency in an empty cluster: a medium plan of the slowest model on a medium server."""
        for model in cluster.active or cluster.models:
            middle = model.tree.middle
            run_s = np.median(self._rest_s(model.number, middle, 0))
            self.empty_s = max(self.empty_s, float(np.median(2 * len(middle) * self.hop_s) + run_s))

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
        tree, ways = served.tree, []
        for choice in tree.after[path]:
            longer = (*path, choice)
            ways.append((choice, served.key_of_path(longer), tree.stay(longer)))
        return ways

    def _run_s(self, key: Key) -> Values:
        """Time of a full batch of one segment alone on each server."""
        return np.array([p.latency_s(key, self.group) for p in self.cluster.profiles])

    def _rest_s(self, model: int, plan: Path, done: int) -> Values:
        """Time of full batches of a plan's segments after the first `done`, on each server."""
        total: Values = np.sum([self.run_s(k) for k in self.cluster.models[model].legs(plan)[done:]], axis=0)
        return total


class ServerSpeeds:
    """Learns from blocks and batches how fast each server is, and tells routers (`Observation`).

    What routers see is learned in training as in service, so that it means the same in both. The pace, which
    only admission asks for, is learned where there is one.
    """

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self._seen, self._limit = seen, cluster.batch_limit
        self._profiles = cluster.profiles
        self.servers = [ServerSpeed() for _ in cluster.names]
        """What is known of each server, by number."""

    def use(self, cluster: Cluster) -> None:
        """Take the profiles of this cluster, whose models have changed, from now on."""
        self._profiles = cluster.profiles

    def ran(self, event: SegmentFinished) -> None:
        """Learn what batches take from a finished one.

        How long a batch takes that shares its device depends on its neighbours, and the profile knows about
        them: nothing is learned of such servers.
        """
        server, profile = event.server, self._profiles[event.server]
        if not event.size or profile.top_concurrency > 1:
            return
        speed, trail = self.servers[server], event.blocks[0].requests[0].trail
        profiled_s, further = profile.latency_s(event.key, event.size), bool(trail and trail.tried)
        speed.ran(profiled_s, event.busy_s, event.size, further=further)
        self._seen.slowdown[server] = speed.batch.slowdown
        self._seen.first_extra_s[server] = speed.extra_s(further=False)
        self._seen.further_extra_s[server] = speed.extra_s(further=True)

    def worked(self, event: SegmentFinished, now_s: float) -> None:
        """Learn a server's pace from a finished batch, before its blocks are counted as back."""
        server, examples, size = event.server, event.examples, event.size
        speed, profile = self.servers[server], self._profiles[server]
        left = self._seen.outstanding[server] - examples
        if left >= self._limit:
            full_s = profile.latency_s(event.key, self._limit)
            speed.worked(examples * full_s / self._limit, now_s)
        else:
            alone_s = profile.latency_s(event.key, size or examples)
            speed.worked_in_part((examples / size if size else 1.0) * alone_s, now_s, is_idle=left <= 0.0)

    def returned(self, server: int, took_s: float, expected_s: float) -> None:
        """Note how long a block took at a server, and how long it should have taken by profile."""
        speed = self.servers[server]
        speed.returned(took_s, expected_s)
        self._seen.lateness[server] = speed.lateness.mean

    def lose(self, server: int) -> None:
        """Note that a server is gone, with the work it had."""
        self.servers[server].lost()
        self._seen.lateness[server] = 1.0
