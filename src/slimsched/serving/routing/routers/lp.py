"""The planner: the fluid optimum re-solved now and then, followed by a fast rule (as Proteus does).

The plan gives each kind of device a rate for each width tuple, a request staying on one server. The rule
sends a new request to the server and the first width that lag furthest behind the plan, keeps it on its
server, and goes on with the width that lags behind among those the plan has after the widths so far.
"""

from random import Random

import numpy as np
from numpy.typing import NDArray

from slimsched.models.width import WIDTH_TUPLES, WIDTHS
from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.routing.estimate import Estimate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class LpRouter:
    """Plans for the measured rate plus a margin, and for draining what has queued up."""

    def __init__(self, cluster: Cluster, rng: Random, every_s: float = 1.0, margin: float = 1.1) -> None:
        self._cluster = cluster
        self._estimate = Estimate(cluster)
        self._every_s = every_s
        self._margin = margin
        self._kind_of, self._members, self._cost_s = _kinds(cluster)
        self._planned_s = -np.inf
        self._planned_rate = 0.0
        self._planned_for = 0
        self._share: NDArray[np.float64] = np.zeros((len(self._members), len(WIDTH_TUPLES)))
        self._follow: dict[tuple[int, tuple[float, ...]], NDArray[np.float64]] = {}
        self._given: dict[tuple[int, tuple[float, ...]], NDArray[np.float64]] = {}
        self._kind_given = np.zeros(len(self._members))

    def route(self, seen: Observation) -> Route:
        """Follow the plan, making a new one when it is old or servers came or went."""
        if self._is_stale(seen):
            self._plan(seen)
        group = min(seen.count, self._estimate.group)
        server = self._server(seen, group)
        width = self._width(self._kind_of[server], seen.widths, group)
        return Route(server, width, group, "behind the plan")

    def _is_stale(self, seen: Observation) -> bool:
        """Whether the plan is old, or made for quite another rate or for servers that are no more."""
        age_s = seen.now_s - self._planned_s
        moved = abs(seen.arrival_rate_per_s - self._planned_rate) > 0.1 * self._planned_rate
        return age_s >= self._every_s or (moved and age_s >= 0.05) or len(seen.alive_ids) != self._planned_for

    def _server(self, seen: Observation, group: int) -> int:
        if seen.source != GATEWAY:
            return seen.source
        behind = self._share.sum(axis=1) - self._kind_given / max(1.0, float(self._kind_given.sum()))
        for kind in np.argsort(-behind):
            members = self._members[int(kind)]
            wait_s = seen.backlog_s[members] + seen.penalty_s[members]
            best = int(wait_s.argmin())
            if np.isfinite(wait_s[best]):
                self._kind_given[kind] += group
                return int(members[best])
        return seen.alive_ids[0]

    def _width(self, kind: int, so_far: tuple[float, ...], group: int) -> float:
        """The width furthest behind its share among those the plan has after `so_far`."""
        at = (kind, so_far)
        wanted = self._follow.get(at)
        if wanted is None:
            grid = self._share[kind].reshape((len(WIDTHS),) * 4)
            rest = grid[tuple(WIDTHS.index(w) for w in so_far)].reshape(len(WIDTHS), -1).sum(axis=1)
            wanted = rest / rest.sum() if rest.sum() > 1e-12 else np.eye(len(WIDTHS))[0]
            self._follow[at] = wanted
        given = self._given.setdefault(at, np.zeros(len(WIDTHS)))
        choice = int((wanted * (given.sum() + group) - given).argmax())
        given[choice] += group
        return WIDTHS[choice]

    def _plan(self, seen: Observation) -> None:
        """Σ_t acc z[d, t] at its largest with Σ_t cost[d, t] z[d, t] ≤ servers of kind d that are alive."""
        from scipy.optimize import linprog

        self._planned_s, self._planned_rate = seen.now_s, seen.arrival_rate_per_s
        self._planned_for = len(seen.alive_ids)
        waiting = seen.fifo + float(seen.outstanding.sum())
        rate = max(
            1.0, self._margin * seen.arrival_rate_per_s + max(0.0, waiting - 64.0) / self._every_s * 0.5
        )
        alive = np.array([float(seen.alive[members].sum()) for members in self._members])
        kinds, tuples = self._cost_s.shape
        busy = np.zeros((kinds, kinds * tuples))
        for kind in range(kinds):
            busy[kind, kind * tuples : (kind + 1) * tuples] = self._cost_s[kind] * rate
        solved = linprog(
            -np.tile(self._cluster.accuracy.by_tuple, kinds),
            A_ub=np.vstack([busy, np.ones((1, kinds * tuples))]),
            b_ub=np.concatenate([0.97 * alive, [1.0]]),
            method="highs",
        )
        assert solved.x is not None, solved.message  # serving nothing is always feasible
        share = solved.x.reshape(kinds, tuples)
        self._share = share / max(1e-12, float(share.sum()))
        self._follow.clear()
        self._given.clear()
        self._kind_given[:] = 0.0


def _kinds(cluster: Cluster) -> tuple[list[int], list[NDArray[np.int64]], NDArray[np.float64]]:
    """The kind of each server, the servers of each kind, and the cost of each tuple on each kind."""
    order = {id(profile): None for profile in cluster.profiles}
    numbers = {profile: kind for kind, profile in enumerate(order)}
    kind_of = [numbers[id(profile)] for profile in cluster.profiles]
    members = [np.flatnonzero(np.array(kind_of) == kind) for kind in range(len(order))]
    cost_s = np.array(
        [
            [
                sum(
                    cluster.work_s[KEYS[s, w, widths[s - 1] if s else None]][servers[0]]
                    for s, w in enumerate(widths)
                )
                for widths in WIDTH_TUPLES
            ]
            for servers in members
        ]
    )
    return kind_of, members, cost_s
