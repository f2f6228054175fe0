"""Routers that follow no goal: from random and shortest queues to the fluid optimum."""

from collections.abc import Callable
from functools import lru_cache
from random import Random

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import Amount, Factor, Interval, PositiveShare
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import GATEWAY, Cluster, Values
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.gateway.observation import Estimate, Observation, Route, Router
from slimsched.serving.routers.goal import Warmth, kinds_of


class _Shard:
    """Every k-th server, with views of the whole cluster's observation."""

    def __init__(self, number: int, shards: int, cluster: Cluster, make: Callable[[Cluster], Router]) -> None:
        self._pick = slice(number, None, shards)
        self._number, self._shards = number, shards
        part = cluster.part(self._pick)
        self._router = make(part)
        self.seen = Observation(len(part), len(part.models))

    def look_at(self, whole: Observation) -> None:
        """Make this shard's arrays views of the whole observation's arrays."""
        for name, value in vars(whole).items():
            if isinstance(value, np.ndarray) and name != "model_rates_per_s":
                setattr(self.seen, name, value[self._pick])
        self.count_alive()

    def count_alive(self) -> None:
        """Update the list of servers that are up."""
        self.seen.alive_ids = [int(i) for i in np.flatnonzero(self.seen.alive)]

    @property
    def load_s(self) -> float:
        """Mean backlog per server."""
        return float(self.seen.backlog_s.sum()) / len(self.seen.alive_ids)

    def route(self, whole: Observation) -> Route | None:
        """Ask this shard's router about the head."""
        seen, shards, source = self.seen, self._shards, whole.source
        here = source >= 0 and source % shards == self._number
        seen.now_s, seen.plans = whole.now_s, whole.plans
        seen.look_at(replace(whole.head, source=source // shards if here else GATEWAY))
        seen.fifo, seen.done = whole.fifo // shards, whole.done // shards
        seen.done_rate_per_s, seen.active_w = whole.done_rate_per_s / shards, whole.active_w / shards
        seen.arrival_rate_per_s = whole.arrival_rate_per_s / shards
        seen.model_rates_per_s = whole.model_rates_per_s / shards
        route = self._router.route(seen)
        if route is None:
            return None
        why = route.why
        if why is not None and why.server >= 0:
            why = replace(why, server=why.server * shards + self._number)
        server = route.server * shards + self._number
        return Route(server, route.choice, route.group, route.reason, route.ahead, why)


class ShardedRouter:
    """Splits the servers into shards, each with its own router; picks a shard, then asks its router.

    A new request goes to the less loaded of two random shards (power of two choices) and stays there, so its
    activations move within the shard. Each router sees only its shard's servers, so its cost does not grow
    with the cluster. Servers are dealt to shards in turn, so every shard has the same mix of devices.
    """

    def __init__(
        self, cluster: Cluster, rng: Random, make: Callable[[Cluster], Router], *, size: int = 32
    ) -> None:
        shards = max(1, len(cluster) // max(1, size))
        self._shards = [_Shard(number, shards, cluster, make) for number in range(shards)]
        self._rng = rng
        self._whole: Observation | None = None
        self._alive_ids: list[int] = []
        self._up: list[_Shard] = []

    def route(self, seen: Observation) -> Route | None:
        """Return the route that the shard's router chooses."""
        if seen is not self._whole or seen.alive_ids is not self._alive_ids:
            self._look(seen)
        return self._choose(seen).route(seen)

    def _choose(self, seen: Observation) -> _Shard:
        """Return the shard that holds the input; for a new request, the less loaded of two."""
        if seen.source >= 0:
            shard = self._shards[seen.source % len(self._shards)]
            if shard.seen.alive_ids:
                return shard
        if len(self._up) < 2:
            return self._up[0]
        one, other = self._rng.sample(self._up, 2)
        return one if one.load_s <= other.load_s else other

    def _look(self, seen: Observation) -> None:
        if seen is not self._whole:
            self._whole = seen
            for shard in self._shards:
                shard.look_at(seen)
        for shard in self._shards:
            shard.count_alive()
        self._alive_ids = seen.alive_ids
        self._up = [shard for shard in self._shards if shard.seen.alive_ids]


class WarmRouter:
    """Gives any router what `goal` knows about loaded choices: `warm:ROUTER`.

    A choice that a busy server would have to load first is replaced by the widest one that is loaded there
    and narrower, and the widest loaded choice is asked for now and then, so that it stays loaded.
    """

    def __init__(self, cluster: Cluster, router: Router) -> None:
        self._router = router
        self._warmth = Warmth(cluster)

    def route(self, seen: Observation) -> Route | None:
        """Return the other router's route, at a choice that the server has loaded."""
        route = self._router.route(seen)
        if route is None:
            return None
        if not seen.alive.all():
            self._warmth.forget(~seen.alive)
        server, choice, group = route.server, route.choice, route.group
        cold = self._warmth.cold(seen)[:, server]
        if cold[choice]:
            choice = max([one for one in seen.choices if one < choice and not cold[one]], default=choice)
        due = self._warmth.due(seen, server)
        if due is not None and due > choice and due in seen.choices:
            choice, group = due, 1
        self._warmth.ask(seen, server, choice)
        return Route(server, choice, group, route.reason, route.ahead, route.why)


class LpRouter:
    """Solves the fluid programme about once per second and follows the solution, as Proteus does.

    It plans for the measured rate plus a margin, and for draining the queues. The programme gives each kind
    of device a rate for each plan of each model; a request stays on one server. A new request goes to the
    kind of device furthest behind its rate, and to the server of that kind with the shortest backlog. At each
    segment it gets the choice furthest behind its rate among those its path allows.
    """

    def __init__(self, cluster: Cluster, rng: Random, every_s: Interval = 1.0, margin: Factor = 1.1) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._every_s = every_s
        self._margin = margin
        kind_of, first = kinds_of(cluster)
        self._kind_of: list[int] = kind_of.tolist()
        self._members = [np.flatnonzero(kind_of == kind) for kind in range(len(first))]
        plans_s = [cluster.plan_s(model, plan) for model in cluster.models for plan in model.tree.plans]
        self._cost_s: Values = np.array(plans_s)[:, first].T
        sizes = [len(model.tree.plans) for model in cluster.models]
        self._columns = [slice(sum(sizes[:n]), sum(sizes[: n + 1])) for n in range(len(sizes))]
        self._value = np.concatenate([model.weight * model.quality.by_plan for model in cluster.models])
        self._planned_s = -np.inf
        self._planned_rate = 0.0
        self._planned_for = 0
        self._share: NDArray[np.float64] = np.zeros((len(self._members), sum(sizes)))
        self._follow: dict[tuple[int, int, Path], NDArray[np.float64]] = {}
        self._given: dict[tuple[int, int, Path], NDArray[np.float64]] = {}
        self._kind_given = np.zeros((len(sizes), len(self._members)))

    def route(self, seen: Observation) -> Route:
        """Follow the plan; make a new one when it is old or the servers have changed."""
        if self._is_stale(seen):
            self._plan(seen)
        group = min(seen.count, self._estimate.group)
        server = self._server(seen, group)
        choice = self._choice(self._kind_of[server], seen.model, seen.path, group)
        return Route(server, choice, group, "behind the plan")

    def _is_stale(self, seen: Observation) -> bool:
        """Whether the plan is old, or was made for a very different rate or number of servers."""
        age_s = seen.now_s - self._planned_s
        moved = abs(seen.arrival_rate_per_s - self._planned_rate) > 0.1 * self._planned_rate
        return age_s >= self._every_s or (moved and age_s >= 0.05) or len(seen.alive_ids) != self._planned_for

    def _server(self, seen: Observation, group: int) -> int:
        if seen.source != GATEWAY and seen.alive[seen.source]:
            return seen.source
        share = self._share[:, self._columns[seen.model]].sum(axis=1)
        given = self._kind_given[seen.model]
        behind = share / max(1e-12, float(share.sum())) - given / max(1.0, float(given.sum()))
        for kind in np.argsort(-behind):
            members = self._members[int(kind)]
            wait_s = seen.backlog_s[members] + seen.penalty_s[members]
            best = int(wait_s.argmin())
            if np.isfinite(wait_s[best]):
                given[kind] += group
                return int(members[best])
        return seen.alive_ids[0]

    def _choice(self, kind: int, model: int, path: Path, group: int) -> int:
        """Return the choice furthest behind its share among those that may follow a path."""
        at = (kind, model, path)
        tree = self._cluster.models[model].tree
        choices = tree.choices[tree.row[path]]
        wanted = self._follow.get(at)
        if wanted is None:
            rest = np.zeros(len(choices))
            way = {int(choice): number for number, choice in enumerate(choices)}
            for plan, share in zip(tree.plans, self._share[kind, self._columns[model]], strict=True):
                if plan[: len(path)] == path:
                    rest[way[plan[len(path)]]] += share
            wanted = rest / rest.sum() if rest.sum() > 1e-12 else np.eye(len(choices))[0]
            self._follow[at] = wanted
        given = self._given.setdefault(at, np.zeros(len(choices)))
        furthest = int((wanted * (given.sum() + group) - given).argmax())
        given[furthest] += group
        return int(choices[furthest])

    def _plan(self, seen: Observation) -> None:
        """Maximise Σ_p acc z[d, p] with Σ_p cost[d, p] z[d, p] ≤ live servers of kind d."""
        from scipy.optimize import linprog

        self._planned_s, self._planned_rate = seen.now_s, seen.arrival_rate_per_s
        self._planned_for = len(seen.alive_ids)
        waiting = seen.fifo + float(seen.outstanding.sum())
        rate = max(
            1.0, self._margin * seen.arrival_rate_per_s + max(0.0, waiting - 64.0) / self._every_s * 0.5
        )
        alive = np.array([float(seen.alive[members].sum()) for members in self._members])
        kinds, plans = self._cost_s.shape
        busy = np.zeros((kinds, kinds * plans))
        for kind in range(kinds):
            busy[kind, kind * plans : (kind + 1) * plans] = self._cost_s[kind] * rate
        served = np.zeros((len(self._columns), kinds, plans))
        for number, columns in enumerate(self._columns):
            served[number, :, columns] = 1.0
        rates = seen.model_rates_per_s
        shares = rates / rates.sum() if rates.sum() > 0.0 else np.full(len(rates), 1.0 / len(rates))
        solved = linprog(
            -np.tile(self._value, kinds),
            A_ub=np.vstack([busy, served.reshape(len(served), -1)]),
            b_ub=np.concatenate([0.97 * alive, shares]),
            method="highs",
        )
        assert solved.x is not None, solved.message  # serving nothing is always feasible
        share = solved.x.reshape(kinds, plans)
        self._share = share / max(1e-12, float(share.sum()))
        self._follow.clear()
        self._given.clear()
        self._kind_given[:] = 0.0


class DriftPlusPenaltyRouter:
    """Drift plus penalty (Neely): trades queue growth against lost accuracy.

    It minimises Q_i · work_i(c) + move_i − V · accuracy(c) over servers i and choices c. Q_i is the backlog
    of server i in seconds. work_i(c) is the head's service time there, divided by the mean service time at
    the widest choice. move_i is the time to move its inputs there. accuracy(c) is the expected accuracy after
    this choice. V (seconds per unit of accuracy) sets how much queue a point is worth.
    """

    def __init__(self, cluster: Cluster, rng: Random, v: Amount = 2.0) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._v = v
        self._ahead = [
            [_ahead(cluster, model, path) for path in model.tree.paths] for model in cluster.models
        ]

    def route(self, seen: Observation) -> Route:
        """Score every (choice, server) and take the least."""
        tree = self._cluster.models[seen.model].tree
        row = tree.row[seen.path]
        work, gain = self._ahead[seen.model][row]
        score = seen.backlog_s * work + self._estimate.move_s(seen) - self._v * gain[:, None]
        way, server = divmod(int(score.argmin()), len(self._cluster))
        choice = int(tree.choices[row][way])
        return Route(server, choice, self._estimate.group, "least drift plus penalty")


def _ahead(cluster: Cluster, model: ServedModel, path: Path) -> tuple[Values, Values]:
    """Return work (choices, servers) and expected accuracy (choices) of every choice after a path."""
    longer = [(*path, int(choice)) for choice in model.tree.choices[model.tree.row[path]]]
    service_s = [cluster.work_s[model.key_of_path(one)] for one in longer]
    gain = np.array([model.weight * model.quality.expected(one) for one in longer])
    return np.array([one / service_s[-1].mean() for one in service_s]), gain


class _PickServer:
    """Asks `_pick` for the server, and takes the widest choice that is in time there.

    In time means within `share` of what is left until the deadline.
    """

    reason = ""

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        self._cluster, self._random, self._share = cluster, rng.random, share
        self._estimate = Estimate(cluster)

    def route(self, seen: Observation) -> Route:
        """Take the server that the rule picks."""
        server = self._pick(seen)
        choice = self._estimate.fitting_choice(seen, server, self._share)
        return Route(server, choice, self._estimate.group, self.reason)

    def _pick(self, seen: Observation) -> int:
        raise NotImplementedError


class SedRouter(_PickServer):
    """Picks the server that should finish the head first: backlog plus move plus run, in seconds."""

    reason = "shortest expected delay"

    def _pick(self, seen: Observation) -> int:
        return int((self._estimate.wait_s(seen) + self._estimate.widest_s(seen)).argmin())


class JsqRouter(_PickServer):
    """Picks the server with the fewest outstanding requests. It ignores how fast servers are."""

    reason = "shortest queue"

    def _pick(self, seen: Observation) -> int:
        return int((seen.outstanding + seen.penalty_s).argmin())


class SpeedJsqRouter(_PickServer):
    """Picks the least (outstanding + 1) / speed; speed is the server's throughput at the widest plan."""

    reason = "shortest queue for its speed"

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 0.5) -> None:
        super().__init__(cluster, rng, share)
        self._widest_s = [cluster.plan_s(model, model.spec.widest) for model in cluster.models]

    def _pick(self, seen: Observation) -> int:
        return int(((seen.outstanding + 1.0) * self._widest_s[seen.model] + seen.penalty_s).argmin())


class PowerOfTwoRouter(_PickServer):
    """Draws two servers at random and picks the one with fewer outstanding requests (Ray Serve's default)."""

    reason = "shorter of two queues"

    def _pick(self, seen: Observation) -> int:
        alive = seen.alive_ids
        one = alive[int(self._random() * len(alive))]
        two = alive[int(self._random() * len(alive))]
        return one if seen.outstanding[one] <= seen.outstanding[two] else two


class RoundRobinRouter:
    """Gives all servers equal shares, whatever their speed; the choice changes after each full turn."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._group = cluster.batch_limit
        self._turn = 0

    def route(self, seen: Observation) -> Route:
        """Return the next server in turn."""
        alive, choices = seen.alive_ids, seen.choices
        self._turn += not seen.is_decided  # the rest of a plan belongs to the same turn
        turn = max(0, self._turn - 1)
        choice = choices[(turn // len(alive)) % len(choices)]
        return Route(alive[turn % len(alive)], choice, self._group, "next in turn")


def group_sizes(batch_limit: int) -> tuple[int, ...]:
    """List the group sizes to choose from: powers of two up to the batch limit."""
    return tuple(2**power for power in range(batch_limit.bit_length()) if 2**power <= batch_limit)


class RandomRouter:
    """Picks server, choice and group at random, each with equal chance: the paper's baseline."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._random = rng.random
        self._groups = group_sizes(cluster.batch_limit)

    def route(self, seen: Observation) -> Route:
        """Draw a server, a choice and a group."""
        draw, alive, choices, groups = self._random, seen.alive_ids, seen.choices, self._groups
        return Route(
            alive[int(draw() * len(alive))],
            choices[int(draw() * len(choices))],
            groups[int(draw() * len(groups))],
            "random",
        )


class SlackFitRouter:
    """Sorts (choice, group) by latency for each segment and server, and takes the slowest that fits.

    SuperServe, where this comes from, schedules whole models on equal GPUs. Here the remaining segments share
    the slack equally, and the head goes to the server where it can start first.
    """

    def __init__(self, cluster: Cluster, rng: Random, share: PositiveShare = 1.0) -> None:
        self._share = share
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._groups = group_sizes(cluster.batch_limit)
        self._buckets = lru_cache(maxsize=None)(self._sorted)

    def route(self, seen: Observation) -> Route:
        """Take the slowest bucket within the slack; else the narrowest choice in the largest group."""
        wait_s = self._estimate.wait_s(seen)
        server = int(wait_s.argmin())
        left = self._cluster.models[seen.model].segments - seen.segment
        share_s = self._share * (seen.deadline_s - seen.now_s) / left
        slack_s = share_s - float(wait_s[server]) - 2 * float(self._estimate.hop_s[server])
        buckets = self._buckets(seen.model, seen.path, self._cluster.profiles[server])
        for latency_s, choice, group in buckets:
            if latency_s <= slack_s:
                return Route(server, choice, group, "bucket just under the slack")
        narrowest = min(choice for _, choice, _ in buckets)
        return Route(server, narrowest, self._groups[-1], "no slack: narrowest")

    def _sorted(self, model: int, path: Path, profile: Profile) -> list[tuple[float, int, int]]:
        """List (latency, choice, group), slowest first; at equal latency the wider choice comes first."""
        served, buckets = self._cluster.models[model], []
        for choice in served.tree.after[path]:
            key = served.key_of_path((*path, choice))
            buckets += [(profile.latency_s(key, group), choice, group) for group in self._groups]
        return sorted(buckets, reverse=True)
