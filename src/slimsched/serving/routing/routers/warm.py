"""Gives any router what `goal` knows about loaded choices: `warm:ROUTER`.

A choice that a busy server would have to load first is replaced by the widest one that is loaded there and
narrower, and the widest loaded choice is asked for now and then, so that it stays loaded (`warmth.py`).
"""

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route, Router
from slimsched.serving.routing.warmth import Warmth


class WarmRouter:
    """Asks another router, and keeps to choices that are loaded while a server is busy."""

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
