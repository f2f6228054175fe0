"""The goal router: sets prices for device time, energy and waiting, so that stated goals are met.

Every (choice c, server i) for the head is scored at once; T is the backlog to aim for:

    score(c, i) = −v · A_i(c) + c_i · work_i(c) + (ω · own_i(c) + θ · move_i) / T
    c_i = g · s_i · e_i · (1 + 3 · e_i / T)

A_i(c) is the advantage of a choice under the cost to go (`CostToGo`): the accuracy still within reach, less
device time at the planner's price π (`gateway/goal.py`), less the objective at its price ε. v is what a
point of accuracy is worth in the head's model (`ModelGoal`). c_i is the price that the queue adds on a server
with e_i seconds more work than T; s_i is how slow the server is. own_i is the head's own time there: the
backlog, then this and all later segments. move_i is the time to move its inputs over the network. A busy
server is not asked for a choice that it would have to load first (`Warmth`).

π follows the load, ε follows the accuracy floor or a limit on energy or power (`EnergyLimit`), and T follows
the limits on latency. Latency is about a fixed time plus one backlog per segment. Where all segments are
planned at once, `WholePlan` replaces the score and latency is measured on answers.

What batches cost in service beyond their profiles is learned (`ServerSpeeds`). Requests pay for it in the
prices, and a plan that goes on after an answer pays for its own batch (`BatchCharge`).

Several models share one price of device time, because a second of a device must be worth the same to all.

Where a model says how sure it is (`sure`), its plans are worth what may follow them, and every answer is
judged by the same prices (`gateway/stop_when_sure.py`): it is sent, or a wider plan goes on from a kept
activation.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import Amount, PositiveSeconds, Share
from slimsched.core.statistics import Fading
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster, Values
from slimsched.serving.domain.request import Key, Request, Why, alike
from slimsched.serving.gateway.goal import PRICES, CostToGo, Goal, Pricing, step_above
from slimsched.serving.gateway.observation import Estimate, Observation, Route, Verdict
from slimsched.serving.gateway.stop_when_sure import Judgement, Trust
from slimsched.serving.routers.goal_following import (
    LONGEST_STEP_S,
    TARGET_LIMIT_S,
    EnergyLimit,
    ModelGoal,
    share_out,
)

LEAST_GROUP = 16
"""Requests of a stated plan that would run longer than they wait are shared between servers that could begin
before half of them are done, but in no smaller groups than this."""

NO_LIMIT_S = 60.0
"""A deadline further away than this sets no limit."""

LOOSEN_S = 2.0
"""A longer limit takes effect over this time; a shorter one takes effect at once."""

TARGET = 1 / 3
"""The backlog to aim for, as a share of the limit."""

SURE_TARGET = 1 / 4
"""The same where an answer may be followed by that of a wider plan."""

EASY = 2.0
"""How many times as long queues may be at light load."""

LIGHT, HEAVY = 0.6, 0.9
"""Loads, as shares of what the cluster serves with widest plans, between which the target changes."""

DEAREST = 2.0
"""Highest price of a crowded server. A higher one narrows nothing and only moves blocks around."""


class WholePlan:
    """Chooses a server and a whole plan, in clusters where every choice is loaded.

    A plan that the sender stated goes to the server that finishes it first. Otherwise each server i has the
    cost to go J_i at its own price: the planner's π plus what its queue adds. The head goes to the server
    with the best J_i less the price of the head's own time, at the choices that J_i gives. Where deadlines
    set a limit L, queues aim for a third of L, or a quarter where answers may be followed by wider plans,
    because those who go on wait again. Above that, what they add grows with the square of the excess, up to
    the highest price at L. Where the load leaves room for widest plans, a queue is a chance meeting that soon
    passes: then queues may be twice as long before they narrow anything.

    `limit_s` is the limit that deadlines set, 0 if none.
    """

    def __init__(
        self,
        estimate: Estimate,
        costs_to_go: Sequence[CostToGo],
        kind_of: NDArray[np.int64],
        full_s: Values,
        *,
        sure: bool = False,
    ) -> None:
        self.limit_s = 0.0
        self.load = 0.0
        """The load, as a share of what the cluster serves with widest plans."""
        self._estimate, self._costs_to_go = estimate, costs_to_go
        self._usual = SURE_TARGET if sure else TARGET
        self._kinds: list[int] = kind_of.tolist()
        self._full_s: list[float] = full_s.tolist()
        self._stated_s = lru_cache(maxsize=None)(self._stated)

    def soonest(self, seen: Observation) -> Route:
        """Return the server that would finish the head's stated plan first."""
        count = min(seen.count, self._estimate.group)
        wait_s, each_s = self._estimate.wait_s(seen), self._stated_s(seen.model, seen.plan, seen.segment)
        server = int((wait_s + count * each_s).argmin())
        own_s = count * float(each_s[server])
        if count > LEAST_GROUP and wait_s[server] < own_s:  # else sharing would gain little
            helpers = int(np.count_nonzero(wait_s < wait_s[server] + own_s / 2))
            count = min(count, max(LEAST_GROUP, -(-seen.count // helpers)))
        plan = self._estimate.cluster.models[seen.model].tree.plans[seen.plan]
        choice, *ahead = plan[seen.segment :]
        return Route(server, choice, count, "stated plan, done first", tuple(ahead))

    def cheapest(
        self,
        seen: Observation,
        price: float,
        objective_price: float,
        crowd: Values,
        own_per_s: float,
        binding: str = "",
    ) -> Route:
        """Return the cheapest server and choices; a second of the head's own time costs `own_per_s`."""
        cost_to_go = self._costs_to_go[seen.model]
        count, floor = min(seen.count, self._estimate.group), seen.min_accuracy
        row = cost_to_go.tree.row[seen.path]
        prices = PRICES[np.searchsorted(PRICES[:-1], price + crowd)].tolist()
        wait_s, best, second, left = self._estimate.wait_s(seen).tolist(), (inf, 0), (inf, -1), 0.0
        for server in seen.alive_ids:
            kind = self._kinds[server]
            value, rest = cost_to_go.at(prices[server], objective_price, floor)
            each = float(rest[row, kind])
            own_s = wait_s[server] + count * self._full_s[server] * each
            cost = own_per_s * own_s - float(value[row, kind])
            if cost < best[0]:
                best, second, left = (cost, server), best, each
            elif cost < second[0]:
                second = cost, server
        server = best[1]
        kind, cost_s = self._kinds[server], left * self._full_s[server]
        choice, *ahead = cost_to_go.course(seen.path, kind, prices[server], objective_price, floor)
        quality = self._estimate.cluster.models[seen.model].quality
        worth = quality.accuracy((*seen.path, choice, *ahead))
        if second[0] < inf:
            other = second[1]
            its = cost_to_go.course(seen.path, self._kinds[other], prices[other], objective_price, floor)
            why = Why(binding, worth, cost_s, other, its[0], second[0] - best[0])
        else:
            why = Why(binding, worth, cost_s)
        return Route(server, choice, self._estimate.group, "least price of a whole plan", tuple(ahead), why)

    def update_target(self, limit_s: float, passed_s: float) -> float:
        """Lower the limit at once, raise it gradually; return the backlog to aim for."""
        if limit_s <= NO_LIMIT_S:
            share = min(1.0, passed_s / LOOSEN_S) if limit_s > self.limit_s > 0.0 else 1.0
            self.limit_s += share * (limit_s - self.limit_s)
        return self._target() * self.limit_s

    def _target(self) -> float:
        """Return the backlog to aim for, as a share of the limit."""
        room = min(1.0, max(0.0, (HEAVY - self.load) / (HEAVY - LIGHT)))
        return self._usual * (1.0 + room * (EASY - 1.0))

    def crowd(self, backlog_s: Values) -> Values:
        """Return what each server's queue adds to the price, given the limit."""
        target_s = self._target() * self.limit_s
        share = np.clip((backlog_s - target_s) / (self.limit_s - target_s), 0.0, 1.0)
        return DEAREST * share * share

    def _stated(self, model: int, plan: int, segment: int) -> Values:
        """Return the device time of this and all later segments of a plan, by server."""
        served = self._estimate.cluster.models[model]
        return self._estimate.cluster.plan_s(served, served.tree.plans[plan], segment)


CHANGE, LEAST_CHANGE = 0.25, 0.01
"""A charge is set anew when it is off by this share and by this much work."""

EVERY_S = 1.0
"""It is set anew at most once in this time."""


class BatchCharge:
    """What batches cost by themselves, as work per example, for the prices of a router.

    The unit of work is one widest plan on the same server, which takes `full_s`. What first plans are charged
    changes with every batch. What plans are charged that go on after an answer is part of large tables, so it
    changes only now and then.
    """

    def __init__(self, full_s: Values, kind_of: NDArray[np.int64]) -> None:
        self._full_s, self._kind_of = full_s, kind_of
        self._servers = np.bincount(kind_of)  # by kind
        self._further: Values = np.zeros(len(self._servers))
        self._set_s = -EVERY_S

    def first(self, seen: Observation, plans_per_s: Values) -> float:
        """Return the charge of a batch to each example of a first plan, the mean over servers."""
        if not seen.first_extra_s.any():
            return 0.0
        # an example's share of busy time, times the plans that fit into it
        return float((seen.first_extra_s * plans_per_s) @ plans_per_s / plans_per_s.sum())

    def further(self, seen: Observation) -> Values | None:
        """Return the charge to plans that go on, by kind, if it should be set anew."""
        if seen.now_s - self._set_s < EVERY_S:
            return None
        self._set_s = seen.now_s
        by_server = seen.further_extra_s / (self._full_s * seen.slowdown)
        charge = np.bincount(self._kind_of, by_server) / self._servers
        off = np.abs(charge - self._further)
        if not (off > np.maximum(LEAST_CHANGE, CHANGE * self._further)).any():
            return None
        self._further = charge
        return charge


ARRIVALS = 1000.0
"""This many arrivals give the rate to within a few percent. The rate looks back over the time they take."""

LEAST_S, MOST_S = 0.1, 1.0

IDLE_S, FRESH_S = 0.2, 0.08
"""After `IDLE_S` without news the old rate says nothing about the new one. Counting starts again, as if
nothing had arrived for `FRESH_S`."""

PLANS = 2.0
"""The least time to average over, in widest plans: with less, one request to a slow model would look like
overload."""


class Rate:
    """The arrival rate: a fading mean over the time of a thousand arrivals, from 0.1 s to 1 s."""

    def __init__(self) -> None:
        self._mean_per_s = 0.0  # the gateway's own: arrivals, fading over one second
        self._looked_at = Fading()  # arrivals over the time passed, as far as it looks back

    def after(self, mean_per_s: float, passed_s: float, capacity_per_s: float = inf) -> float:
        """Update with the gateway's mean after `passed_s`; return the rate.

        `capacity_per_s` is how many widest plans the cluster can run.
        """
        least_s = PLANS / capacity_per_s
        came = max(0.0, mean_per_s - self._mean_per_s * exp(-passed_s))
        self._mean_per_s = mean_per_s
        if passed_s > IDLE_S:
            self._looked_at, passed_s = Fading(), max(FRESH_S, least_s)
        back_s = min(MOST_S, max(LEAST_S, ARRIVALS / max(mean_per_s, 1e-9)))
        self._looked_at.fade(exp(-passed_s / back_s))
        self._looked_at.note(came, passed_s or max(LEAST_S / 5, least_s))
        return self._looked_at.mean


KEPT_S = 4.0
"""How long a used instance is expected to stay loaded; servers unload after 5 s."""

DUE_S = 3.0
"""After this time without use, a single request asks for the choice again."""

BUSY = 0.9
"""At this utilization or above, a server may refuse to load."""


class Warmth:
    """Which choices each server has loaded, so that it can run them at once.

    A choice is warm if it was used recently; in nested models every narrower choice is warm too. A cold
    choice must be loaded first, and a busy device refuses to load (U_blk). The head of its queue, and
    everything behind it, would then wait until the device is idle. So a router does not ask a busy server for
    a cold choice, and it keeps the widest warm choice loaded with one request every few seconds.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._nested = [model.spec.nested for model in cluster.models]
        self._asked_s = [
            [np.full((len(cluster), len(choices)), -inf) for choices in model.spec.segments]
            for model in cluster.models
        ]

    def cold(self, seen: Observation) -> NDArray[np.bool_]:
        """(choices, servers): what a busy server would have to load although a narrower choice is warm.

        Where nothing narrower is warm the server must load: it could not narrow when queues grow.
        """
        warm = self._asked_s[seen.model][seen.segment] >= seen.now_s - KEPT_S
        narrower = np.logical_or.accumulate(warm, axis=1)
        cold: NDArray[np.bool_] = ~warm & (narrower & (seen.utilization >= BUSY)[:, None])
        return cold.T

    def due(self, seen: Observation, server: int) -> int | None:
        """Return the widest warm choice if it is time to ask for it again."""
        asked_s = self._asked_s[seen.model][seen.segment][server]
        warm = np.flatnonzero(asked_s >= seen.now_s - KEPT_S)
        return int(warm[-1]) if len(warm) and asked_s[warm[-1]] < seen.now_s - DUE_S else None

    def ask(self, seen: Observation, server: int, choice: int) -> None:
        """Note that a block of the head is sent at this choice."""
        narrowest = 0 if self._nested[seen.model] else choice
        self._asked_s[seen.model][seen.segment][server, narrowest : choice + 1] = seen.now_s

    def forget(self, servers: NDArray[np.bool_]) -> None:
        """Note that these servers are down and have lost everything."""
        for model in self._asked_s:
            for asked_s in model:
                asked_s[servers] = -inf


def kinds_of(cluster: Cluster) -> tuple[NDArray[np.int64], list[int]]:
    """Return the kind of each server, by its profile, and the first server of each kind."""
    kinds = {id(profile): None for profile in cluster.profiles}
    number = {profile: kind for kind, profile in enumerate(kinds)}
    kind_of = np.array([number[id(profile)] for profile in cluster.profiles], dtype=np.int64)
    return kind_of, [int(np.flatnonzero(kind_of == kind)[0]) for kind in range(len(kinds))]


LEAST_TICK_S = 0.0005
"""Prices are not updated more often than this: a busy gateway decides thousands of times per second."""

STATED_TICK_S = 0.005
"""The same for requests with a stated plan, which asks for no price."""

PLANNED_ERROR = 1.0
"""Largest error of the backlog that counts where plans are final: a burst is not a lack of capacity."""

LOAD = "load"
"""Stands for the load where no limit of the goal decides."""

STEEPER = 3.0
"""How much steeper than linear the price of backlog rises, so that the router reacts to bursts at once."""


class GoalParameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters set by hand; `slim router train goal` searches for better ones. Prices are in accuracy."""

    crowd_per_s: Amount = 5.5  # g: price of a second of backlog above the target, per widest plan
    wait: Amount = 0.0144  # ω: price of the head's own waiting and running, per T of it
    move: Amount = 0.05  # θ: price of moving, per T of it; moving loads the links as well
    target_s: PositiveSeconds = 0.012  # T: backlog to aim for when no latency limit is stated; set by hand
    integral_per_s: Amount = 3.0  # how fast η moves
    cold: Amount = 10.0  # price of a choice that a busy server would have to load first; set by hand
    in_time: Share = (
        0.0  # for whole plans: if no latency limit is stated, this share of the deadline is the limit
    )
    planner: Amount = 1.0  # share of the planner's price that is used; 0: only the queues' own prices


class GoalRouter:
    """Scores every choice on every server by prices, and takes the least.

    With `sure`, answers of models that say how sure they are can be followed by those of wider plans.
    """

    def __init__(
        self,
        cluster: Cluster,
        goal: Goal | None = None,
        gains: GoalParameters | None = None,
        *,
        sure: bool = False,
    ) -> None:
        self.goal = goal or Goal()
        self.gains = gains or GoalParameters()
        self._cluster, self._sure = cluster, sure
        self._estimate = Estimate(cluster)
        active = cluster.active or cluster.models
        self._full_s: Values = np.mean([cluster.plan_s(m, m.spec.widest) for m in active], axis=0)
        """Device time of a widest plan, the mean over models, by server: the unit of work."""
        self._crowd = self.gains.crowd_per_s * self._full_s * (1.0 / self._full_s).mean()
        self._kind_of, first = kinds_of(cluster)
        self.models = self._goals_of_models(first)
        self.active = [self.models[model.number] for model in active]
        """The goals of the models that take new requests."""
        costs_to_go = [model.cost_to_go for model in self.models]
        capacity = np.bincount(self._kind_of, 1.0 / self._full_s).astype(np.float64)
        self.pricing = Pricing(costs_to_go, capacity, integral_per_s=self.gains.integral_per_s)
        self._work = [
            [one.work.T[longer][:, self._kind_of] for longer in one.tree.children] for one in costs_to_go
        ]
        """Work of each choice after a path, by model and row of the path: (choices, servers)."""
        self._reach = [
            [[m.quality.best_reachable((*path, c)) for c in m.tree.after[path]] for path in m.tree.paths]
            for m in cluster.models
        ]
        """The accuracy within reach after each choice, by model and row of the path before."""
        self._seconds = self._full_s.tolist()
        self._ahead = lru_cache(maxsize=2048)(self._ahead_by_server)
        self._warmth = Warmth(cluster)
        kinds, full_s = self._kind_of.tolist(), self._seconds
        self._judgements = {
            model.model.number: Judgement(cluster, model.model.number, model.cost_to_go, kinds, full_s)
            for model in self.models
            if model.cost_to_go.escalation is not None
        }
        self._whole_plan = WholePlan(
            self._estimate, costs_to_go, self._kind_of, self._full_s, sure=bool(self._judgements)
        )
        self._charge = BatchCharge(self._full_s, self._kind_of)
        self._energy = EnergyLimit(self.goal, sum(profile.idle_w for profile in cluster.profiles))
        self._crowded: tuple[float, Values] = (-1.0, self._full_s)  # when, and what queues add to prices
        self._limits_latency = any(model.goal.latency_limits for model in self.active)
        self._segments = float(np.mean([model.segments for model in active]))
        self._plans = False
        self._spread = 1.0
        self._rate = Rate()
        self._now_s = -1.0
        self.target_s = self._least_target_s()
        """The backlog to aim for."""
        self._crowd_at: tuple[float, Values] = (0.0, self._crowd)  # a target, and the price of crowds there

    def _goals_of_models(self, first: list[int]) -> list[ModelGoal]:
        """Make the goal of each model; `first` has the first server of each kind."""
        cluster, goals = self._cluster, []
        work = [{key: float(s[i] / self._full_s[i]) for key, s in cluster.work_s.items()} for i in first]
        competes = len(cluster.active or cluster.models) > 1
        for model in cluster.models:
            goal = self.goal.of(model.name)
            priced = self.goal if self.goal.limits_energy else goal
            cost_to_go = CostToGo(model, work, _objective(cluster, priced, first), sure=self._sure)
            target_s, empty_s = self.gains.target_s, self._estimate.empty_s
            goals.append(
                ModelGoal(model, goal, cost_to_go, target_s=target_s, empty_s=empty_s, competes=competes)
            )
        return goals

    def _least_target_s(self) -> float:
        """Return the least backlog that any model asks for.

        Models share it, and requests of different models share no batch. So where neither a limit nor
        deadlines set it, it grows with the number of models, and with what their accuracy is worth.
        """
        if self._spread == 1.0 or self._whole_plan.limit_s:
            return min(model.target_s for model in self.active)
        return min(
            one.target_s if one.goal.latency_limits else min(TARGET_LIMIT_S, self._spread * one.target_s)
            for one in self.active
        )

    def route(self, seen: Observation) -> Route:
        """Take the cheapest (choice, server); a stated plan goes to the server that finishes it first."""
        if seen.now_s - self._now_s >= (LEAST_TICK_S if seen.plan < 0 else STATED_TICK_S):
            self._tick(seen)
        if seen.plan >= 0:
            return self._whole_plan.soonest(seen)
        if seen.plans:
            return self._plan(seen)
        return self._choose(seen)

    def _choose(self, seen: Observation) -> Route:
        """Choose for the next segment only."""
        gains, model, target_s = self.gains, self.models[seen.model], self.target_s
        tree = model.cost_to_go.tree
        row = tree.row[seen.path]
        work, choices = self._work[seen.model][row], tree.choices[row]
        count = min(seen.count, self._estimate.group)
        price = self._price(model)
        advantage, onward = self._ahead(seen.model, row, price, model.objective_price, seen.min_accuracy)
        own_s = seen.backlog_s + count * self._full_s * onward
        own = (gains.wait * own_s + gains.move * self._estimate.move_s(seen)) / target_s
        score = self._crowd_price(seen) * work + own
        score -= model.worth * advantage
        if gains.cold and not self.pricing.free and not model.is_short:
            score += gains.cold * self._warmth.cold(seen).take(choices, axis=0)
        flat = score.reshape(-1)
        best = int(flat.argmin())
        least, flat[best] = flat[best], inf
        way, server = divmod(best, len(self._cluster))
        choice = int(choices[way])
        due = self._warmth.due(seen, server) if gains.cold else None
        if due is not None and due > choice and due in choices:
            self._warmth.ask(seen, server, due)
            return Route(server, due, 1, "kept warm")
        self._warmth.ask(seen, server, choice)
        model.note(seen, choice, count)
        worth = self._reach[seen.model][row][way]
        cost_s = float(onward[way, server]) * self._seconds[server]
        other = int(flat.argmin())
        behind = float(flat[other] - least) / model.worth
        binding = model.binding or (LOAD if price > 0.0 else "")
        if behind < inf:
            after, there = divmod(other, len(self._cluster))
            why = Why(binding, worth, cost_s, there, int(choices[after]), behind)
        else:
            why = Why(binding, worth, cost_s)
        return Route(server, choice, self._estimate.group, "least price", (), why)

    def _ahead_by_server(
        self, model: int, row: int, price: float, objective_price: float, floor: float
    ) -> tuple[Values, Values]:
        """Return each choice's advantage and the work from there on, by server: (choices, servers)."""
        advantage, onward = self.models[model].cost_to_go.ahead(row, price, objective_price, floor)
        return advantage.take(self._kind_of, axis=1), onward.take(self._kind_of, axis=1)

    def _plan(self, seen: Observation) -> Route:
        """Plan all remaining segments at once."""
        plan, model = self._whole_plan, self.models[seen.model]
        crowd = self._queues_price(seen)
        own_per_s = self.gains.wait / (plan.limit_s or self.target_s)
        price, objective_price = self._price(model), model.objective_price
        binding = model.binding or (LOAD if price > 0.0 else "")
        return plan.cheapest(
            seen, price, objective_price, crowd / model.worth, own_per_s / model.worth, binding
        )

    def _queues_price(self, seen: Observation) -> Values:
        """Return what each server's queue adds to the price of a whole plan."""
        if self._whole_plan.limit_s:
            return self.pricing.scale * self._whole_plan.crowd(seen.backlog_s)
        return self._crowd_price(seen)

    def keeps(self, model: int) -> bool:
        """Whether answers of this model are judged."""
        return model in self._judgements

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        """Decide at the server's price whether an answer is sent or a wider plan goes on."""
        judgement, model = self._judgements[request.model], self.models[request.model]
        assert request.trail is not None
        if judgement.checked(request, top):
            model.cost_to_go.trust(judgement.trust.holds)
            self._value_anew(model)
        if self._crowded[0] != seen.now_s:
            self._crowded = seen.now_s, self._queues_price(seen)
        price = self._price(model) + float(self._crowded[1][request.trail.homes[-1]]) / model.worth
        prices = (step_above(price), model.objective_price)  # who began narrow goes on where time is free too
        limit_s = model.goal.p99_s or model.goal.p95_s or self._whole_plan.limit_s
        until_s = min(request.deadline_s, request.arrival_s + limit_s) if limit_s else request.deadline_s
        return judgement.judge(request, confidence, prices, until_s - seen.now_s, seen)

    @property
    def trust(self) -> dict[str, Trust]:
        """How far the confidence of each model is trusted, by name."""
        return {self._cluster.models[number].name: one.trust for number, one in self._judgements.items()}

    def _value_anew(self, model: ModelGoal) -> None:
        """Forget what followed from a model's cost to go, which has changed."""
        self._ahead.cache_clear()
        self.pricing.demand_of(model.model.number, model.cost_to_go)

    @property
    def saturated(self) -> bool:
        """Whether the price is so high that nothing narrows any more."""
        return self.pricing.saturated

    def knows(self, model: int, path: Path) -> bool:
        """Whether some plan of a model begins with this path."""
        return path in self.models[model].cost_to_go.tree.row

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Note the latency of answers, for models where nothing else tells it."""
        for request, count in alike(requests):
            self.models[request.model].answered(request, count, now_s, planned=self._plans)

    def with_goal(self, goal: Goal) -> "GoalRouter":
        """A router with the same gains and another goal."""
        return GoalRouter(self._cluster, goal, self.gains, sure=self._sure)

    def _price(self, model: ModelGoal) -> float:
        """Return the planner's price of one widest plan, in accuracy of this model."""
        return max(0.0, self.gains.planner * self.pricing.next() / model.worth - model.objective_price)

    def _crowd_price(self, seen: Observation) -> Values:
        """Return what each server's queue adds to the price."""
        excess = np.maximum(seen.backlog_s / self.target_s - 1.0, 0.0)
        if self._crowd_at[0] != self.target_s:
            self._crowd_at = self.target_s, self._crowd * self.target_s
        price: Values = self._crowd_at[1] * excess * (1.0 + STEEPER * excess)
        return np.minimum(price, DEAREST * self.pricing.scale)

    def _tick(self, seen: Observation) -> None:
        """Update the prices."""
        passed_s = 0.0 if self._now_s < 0.0 else min(LONGEST_STEP_S, seen.now_s - self._now_s)
        self._now_s, self._plans = seen.now_s, seen.plans
        for model in self.models:
            model.meter.fade(passed_s)
        if seen.plans and self.gains.in_time and not self._limits_latency:
            limit_s = self.gains.in_time * (seen.deadline_s - seen.arrival_s)
            if target_s := self._whole_plan.update_target(limit_s, passed_s):
                for model in self.models:
                    model.target_s = target_s
        self._energy.update(seen.active_w, seen.done_rate_per_s, passed_s)
        for model in self.models:
            model.chase(passed_s)
            if self._energy.price > 0.0:
                model.pay_for_energy(self._energy.price, self._energy.binding)
        if not seen.alive.all():
            self._warmth.forget(~seen.alive)
        plans_per_s = np.where(seen.alive, 1.0 / (self._full_s * seen.slowdown), 0.0)
        capacity_per_s = float(plans_per_s.sum())
        backlog_s = float(seen.backlog_s @ plans_per_s) / capacity_per_s
        if len(self.models) > 1:
            share_out(self.active)
            rates, worths = seen.model_rates_per_s, np.array([model.worth for model in self.models])
            total = float(rates.sum())
            self.pricing.mix(rates / max(total, 1e-9), worths)
            # how many models share the backlog, times what their accuracy is worth in the mean
            shares = rates / (total or 1.0)
            self._spread = float((shares @ worths) / (shares @ shares)) if total > 0.0 else 1.0
        self.target_s = self._least_target_s()
        rate_per_s = self._rate.after(seen.arrival_rate_per_s, passed_s, capacity_per_s)
        self._whole_plan.load = rate_per_s / capacity_per_s
        self.pricing.update(
            rate_per_s=rate_per_s,
            capacity_per_s=capacity_per_s,
            error=min(backlog_s / self.target_s - 1.0, PLANNED_ERROR if seen.plans else inf),
            passed_s=passed_s,
            fixed=self._charge.first(seen, plans_per_s) * (1.0 if seen.plans else self._segments),
        )
        if self._judgements and (further := self._charge.further(seen)) is not None:
            for number in self._judgements:
                self.models[number].cost_to_go.charge(further, per_leg=not seen.plans)
                self._value_anew(self.models[number])


def _objective(cluster: Cluster, goal: Goal, first: list[int]) -> list[dict[Key, float]]:
    """Return each key's share of the objective on each kind of device; a widest plan costs 1 on average."""
    if goal.objective == "energy" or goal.limits_energy:
        batch = cluster.batch_limit
        raw = [{k: cluster.profiles[i].energy_j(k, batch) / batch for k in cluster.work_s} for i in first]
    else:
        raw = [{key: float(work_s[i]) for key, work_s in cluster.work_s.items()} for i in first]
    widest = [model.legs(model.spec.widest) for model in cluster.active or cluster.models]
    mean = float(np.mean([sum(one[key] for key in keys) for one in raw for keys in widest]))
    return [{key: value / mean for key, value in one.items()} for one in raw]
