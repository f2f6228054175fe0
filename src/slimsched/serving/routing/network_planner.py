"""Lets a router that decides segment by segment plan whole networks.

Where the scenario asks for plans of whole networks, the gateway asks such a router several times in a row:
for the head, and then for each later segment as if the head had run on the server just chosen. What the
router says becomes one plan. So every router may save the messages of going back and forth, not only those
that were written for it.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import NO_PLAN
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route, Router

HEAD = ("segment", "previous", "source", "path", "choices", "penalty_s", "is_decided")
"""What changes in the observation from segment to segment."""


class NetworkPlanner:
    """Asks a router for all remaining segments of the head, on one server."""

    def __init__(self, router: Router, models: Sequence[ServedModel]) -> None:
        self._router = router
        self._models = models

    def route(self, seen: Observation) -> Route | None:
        """Return the router's route for the head, with the choices it would make afterwards."""
        route = self._router.route(seen)
        if route is None or route.ahead or seen.plan != NO_PLAN:
            return route
        before = {name: getattr(seen, name) for name in HEAD}
        try:
            ahead = self._ahead(seen, route)
        finally:
            for name, value in before.items():
                setattr(seen, name, value)
        return Route(route.server, route.choice, route.group, route.reason, ahead, route.why)

    def _ahead(self, seen: Observation, route: Route) -> tuple[int, ...]:
        model, path = self._models[seen.model], (*seen.path, route.choice)
        seen.source, seen.is_decided = route.server, True
        seen.penalty_s = np.full(len(seen.penalty_s), inf)
        seen.penalty_s[route.server] = 0.0
        ahead: list[int] = []
        while choices := model.tree.after[path]:
            seen.path, seen.choices = path, choices
            seen.segment, seen.previous, _ = model.next[path]
            following = self._router.route(seen)
            if following is None or following.choice not in choices:
                break
            ahead.append(following.choice)
            path = (*path, following.choice)
        return tuple(ahead)
