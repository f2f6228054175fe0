"""The goal router: sets prices for device time, energy and waiting, so that stated goals are met.

Every (choice c, server i) for the head is scored at once; T is the backlog to aim for:

    score(c, i) = −v · A_i(c) + c_i · work_i(c) + (ω · own_i(c) + θ · move_i) / T
    c_i = g · s_i · e_i · (1 + 3 · e_i / T)

A_i(c) is the advantage of a choice under the cost to go (`cost_to_go.py`): the accuracy still within reach,
less device time at the planner's price π (`pricing.py`), less the objective at its price ε. v is what a point
of accuracy is worth in the head's model (`model_goal.py`). c_i is the price that the queue adds on a server
with e_i seconds more work than T; s_i is how slow the server is. own_i is the head's own time there: the
backlog, then this and all later segments. move_i is the time to move its inputs over the network. A busy
server is not asked for a choice that it would have to load first (`warmth.py`).

π follows the load, ε follows the accuracy floor or a limit on energy or power (`energy_limit.py`), and T
follows the limits on latency. Latency is about a fixed time plus one backlog per segment. Where all segments
are planned at once, `whole_plan.py` replaces the score and latency is measured on answers.

What batches cost in service beyond their profiles is learned (`learned_cost.py`). Requests pay for it in the
prices, and a plan that goes on after an answer pays for its own batch (`batch_charge.py`).

Several models share one price of device time, because a second of a device must be worth the same to all.

Where a model says how sure it is (`sure`), its plans are worth what may follow them, and every answer is
judged by the same prices (`judgement.py`): it is sent, or a wider plan goes on from a kept activation.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import Amount, PositiveSeconds, Share
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Key, Request, Why, alike
from slimsched.serving.routing.batch_charge import BatchCharge
from slimsched.serving.routing.cost_to_go import CostToGo, Values
from slimsched.serving.routing.device_kinds import kinds_of
from slimsched.serving.routing.energy_limit import EnergyLimit
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.goal_meter import LONGEST_STEP_S
from slimsched.serving.routing.judgement import Judgement
from slimsched.serving.routing.model_goal import TARGET_LIMIT_S, ModelGoal, share_out
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.pricing import Pricing, step_above
from slimsched.serving.routing.rate import Rate
from slimsched.serving.routing.router import Route, Verdict
from slimsched.serving.routing.trust import Trust
from slimsched.serving.routing.warmth import Warmth
from slimsched.serving.routing.whole_plan import DEAREST, WholePlan

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

    `goal` holds for every model but those with a goal of their own; `goals` adds such goals, by name. With
    `sure`, answers of models that say how sure they are can be followed by those of wider plans.
    """

    def __init__(
        self,
        cluster: Cluster,
        goal: Goal | None = None,
        gains: GoalParameters | None = None,
        *,
        goals: Mapping[str, Goal] | None = None,
        sure: bool = False,
    ) -> None:
        stated = goal or Goal()
        self.goal = replace(stated, by_model={**stated.by_model, **goals}) if goals else stated
        self.gains = gains or GoalParameters()
        self._cluster, self._sure = cluster, sure
        self._estimate = Estimate(cluster)
        active = cluster.active or cluster.models
        self._full_s: Values = np.mean([cluster.plan_s(m, m.spec.widest) for m in active], axis=0)
        """Device time of a widest plan, the mean over models, by server: the unit of work."""
        self._crowd = self.gains.crowd_per_s * self._full_s * (1.0 / self._full_s).mean()
        self._kind_of, first = kinds_of(cluster)
        work = [{key: float(s[i] / self._full_s[i]) for key, s in cluster.work_s.items()} for i in first]
        self.models = [
            ModelGoal(
                model,
                self.goal.of(model.name),
                CostToGo(model, work, _objective(cluster, self._priced(model.name), first), sure=sure),
                target_s=self.gains.target_s,
                empty_s=self._estimate.empty_s,
                competes=len(active) > 1,
            )
            for model in cluster.models
        ]
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
            [[one.model.quality.best_reachable((*path, c)) for c in after] for path, after in its]
            for one, its in ((one, _choices_after(one)) for one in self.models)
        ]
        """The accuracy within reach after each choice, by model and row of the path before."""
        self._seconds = self._full_s.tolist()
        self._ahead = lru_cache(maxsize=2048)(self._ahead_by_server)
        self._warmth = Warmth(cluster)
        self._judgements = {
            model.model.number: Judgement(
                cluster, model.model.number, model.cost_to_go, self._kind_of.tolist(), self._full_s.tolist()
            )
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
        self._plans = False
        self._spread = 1.0
        self._rate = Rate()
        self._now_s = -1.0
        self.target_s = self._least_target_s()
        """The backlog to aim for."""
        self._crowd_at: tuple[float, Values] = (0.0, self._crowd)  # a target, and the price of crowds there

    def _least_target_s(self) -> float:
        """Return the least backlog that any model asks for.

        Models share it, and requests of different models share no batch. So where neither a limit nor
        deadlines set it, it grows with the number of models, and with what their accuracy is worth.
        """
        if self._spread == 1.0 or self._whole_plan.limit_s:
            return min(model.target_s for model in self.active)
        shared_s = [
            model.target_s
            if model.goal.latency_limits
            else min(TARGET_LIMIT_S, self._spread * model.target_s)
            for model in self.active
        ]
        return min(shared_s)

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

    def _priced(self, model: str) -> Goal:
        """Return the goal that says whether energy or time is priced for a model."""
        return self.goal if self.goal.limits_energy else self.goal.of(model)

    @property
    def yielding(self) -> list[str]:
        """The limits that are not kept now, in the order in which they yield."""
        named = len(self.active) > 1
        limits = [f"{one.model.name}: {c}" if named else c for one in self.active for c in one.yielding]
        first = [limit for limit in limits if "accuracy" in limit]
        return [*first, *self._energy.yielding, *(limit for limit in limits if limit not in first)]

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
            self._judge_anew(model, judgement)
        if self._crowded[0] != seen.now_s:
            self._crowded = seen.now_s, self._queues_price(seen)
        price = self._price(model) + float(self._crowded[1][request.trail.homes[-1]]) / model.worth
        prices = (step_above(price), model.objective_price)  # who began narrow goes on where time is free too
        limit_s = model.goal.tail_s or self._whole_plan.limit_s
        until_s = min(request.deadline_s, request.arrival_s + limit_s) if limit_s else request.deadline_s
        return judgement.judge(request, confidence, prices, until_s - seen.now_s, seen)

    @property
    def trust(self) -> dict[str, Trust]:
        """How far the confidence of each model is trusted, by name."""
        return {self._cluster.models[number].name: one.trust for number, one in self._judgements.items()}

    def _judge_anew(self, model: ModelGoal, judgement: Judgement) -> None:
        """Value plans by themselves while a model's confidence is not trusted, else with what may follow."""
        model.cost_to_go.trusts = judgement.trust.holds
        self._value_anew(model)

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

    def _spread_of(self, rates_per_s: Values, worths: Values) -> float:
        """How many models share the backlog: 1 / Σ share², times what their accuracy is worth in the mean."""
        total = float(rates_per_s.sum())
        if total <= 0.0:
            return 1.0
        shares = rates_per_s / total
        return float((shares @ worths) / (shares @ shares))

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
            self.pricing.mix(rates / max(float(rates.sum()), 1e-9), worths)
            self._spread = self._spread_of(rates, worths)
        self.target_s = self._least_target_s()
        rate_per_s = self._rate.after(seen.arrival_rate_per_s, passed_s, capacity_per_s)
        self._whole_plan.load = rate_per_s / capacity_per_s
        self.pricing.update(
            rate_per_s=rate_per_s,
            capacity_per_s=capacity_per_s,
            error=min(backlog_s / self.target_s - 1.0, PLANNED_ERROR if seen.plans else inf),
            passed_s=passed_s,
            fixed=self._charge.first(seen, plans_per_s) * self._batches(seen),
        )
        if self._judgements and (further := self._charge.further(seen)) is not None:
            for number in self._judgements:
                self.models[number].cost_to_go.charge(further, per_leg=not seen.plans)
                self._value_anew(self.models[number])

    def _batches(self, seen: Observation) -> float:
        """Return in how many batches a request runs, if nothing follows its first plan."""
        return 1.0 if seen.plans else float(np.mean([one.model.segments for one in self.active]))


def _choices_after(goal: ModelGoal) -> list[tuple[Path, list[int]]]:
    """Return the paths of a model in the order of its tree, each with the choices that may follow."""
    tree = goal.cost_to_go.tree
    return [(path, [int(c) for c in tree.choices[row]]) for row, path in enumerate(tree.paths)]


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
