"""How the gateway comes by models that are loaded while it runs, and by a router for them."""

from typing import Protocol

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ModelsChanged
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.router import Router


class Growth(Protocol):
    """Knows the models that may be added, and what they cost on each server."""

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        """The cluster after models were added and others retired."""
        ...

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        """Make a router for a cluster whose models have changed; the goal is one stated while running."""
        ...
