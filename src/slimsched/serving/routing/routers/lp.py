"""The LP router: solves the fluid programme about once per second and follows the solution, as Proteus does.

The programme gives each kind of device a rate for each plan of each model; a request stays on one server. A
new request goes to the kind of device furthest behind its rate, and to the server of that kind with the
shortest backlog. At each segment it gets the choice furthest behind its rate among those its path allows.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import Factor, Interval
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.routing.device_kinds import kinds_of
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class LpRouter:
    """Plans for the measured rate plus a margin, and for draining the queues."""

    def __init__(self, cluster: Cluster, rng: Random, every_s: Interval = 1.0, margin: Factor = 1.1) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._every_s = every_s
        self._margin = margin
        self._kind_of, self._members, self._cost_s = _kinds(cluster)
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


def _kinds(cluster: Cluster) -> tuple[list[int], list[NDArray[np.int64]], NDArray[np.float64]]:
    """Return the kind of each server, the servers of each kind, and the cost of each plan on each kind."""
    kind_of, first = kinds_of(cluster)
    members = [np.flatnonzero(kind_of == kind) for kind in range(len(first))]
    plans_s = np.array([cluster.plan_s(model, plan) for model in cluster.models for plan in model.tree.plans])
    return kind_of.tolist(), members, plans_s[:, first].T
