"""Expected times of a choice: waiting, moving and running, from profiles and the gateway's own count."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Key
from slimsched.serving.routing.observation import Observation

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
