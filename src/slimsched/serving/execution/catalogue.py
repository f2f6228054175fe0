"""The catalogue: finds models that are added while a cluster runs, and what they cost on its servers.

Live and in a replay the same folders give the same clusters and the same routers.
"""

from collections.abc import Callable
from pathlib import Path

from slimsched.core.config import ConfigError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import Profile, record_of
from slimsched.serving.execution.model_source import read_model
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.scenario_file import check_scheduler, load_profile
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import RouterMaker, make_router


class Catalogue:
    """Reads models by their entries, once each, and makes clusters and routers for them.

    `prepare` does the slow part beforehand, in any thread: the gateway then only takes what is there.
    """

    def __init__(
        self, scenario: Scenario, router: str, seed: int = 0, *, make: RouterMaker = make_router
    ) -> None:
        self._scenario = scenario
        self._make: Callable[[Cluster, Goal | None], Router] = lambda cluster, goal: make(
            router, cluster, seed, goal or scenario.goal
        )
        self._known: dict[int, tuple[ServedModel, tuple[Profile, ...]]] = {}
        self._prepared: dict[ModelsChanged, Cluster] = {}
        self._routers: dict[int, tuple[Cluster, Goal | None, Router]] = {}  # by the cluster's id

    def prepare(self, cluster: Cluster, change: ModelsChanged, goal: Goal | None) -> Cluster:
        """Make the cluster after a change, and its router; refuse a model that these servers cannot run."""
        changed = self.change(cluster, change)
        self._prepared = {change: changed}
        self._routers = {id(changed): (changed, goal, self._make(changed, goal))}
        return changed

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        """The cluster after models were added and others retired."""
        if (ready := self._prepared.pop(change, None)) is not None:
            return ready
        for entry in change.added:
            while len(cluster.models) < entry.number:
                cluster = _with_gap(cluster)
            cluster = cluster.with_model(*self.find(entry))
        return cluster.without(change.retired) if change.retired else cluster

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        """Make a router for a cluster whose models have changed."""
        ready = self._routers.pop(id(cluster), None)
        if ready is not None and ready[0] is cluster and ready[1] == goal:
            return ready[2]
        return self._make(cluster, goal)

    def find(self, entry: ModelEntry) -> tuple[ServedModel, tuple[Profile, ...]]:
        """Read a model, and find its profile on each server."""
        if entry.number not in self._known:
            self._known[entry.number] = self._read(entry)
        return self._known[entry.number]

    def forget(self, number: int) -> None:
        """Read this model again when it is next asked for: it could not be served."""
        self._known.pop(number, None)

    def on(self, server: int) -> Callable[[ModelEntry], tuple[ServedModel, Profile]]:
        """What one server's scheduler asks when models change."""

        def find(entry: ModelEntry) -> tuple[ServedModel, Profile]:
            model, profiles = self.find(entry)
            return model, profiles[server]

        return find

    def _read(self, entry: ModelEntry) -> tuple[ServedModel, tuple[Profile, ...]]:
        scenario = self._scenario
        if len(scenario.devices) != len(scenario.cluster):
            raise ConfigError("models can be changed only in a scenario that was read from a file")
        model = read_model(entry.source).numbered(entry.number, weight=entry.weight)
        profiles: dict[tuple[str, float], Profile] = {}
        for device, speed in scenario.devices:
            if (device, speed) not in profiles:
                profile = load_profile(device, model, Path(scenario.beside))
                profiles[device, speed] = profile.slowed(1 / speed)
        by_server = tuple(profiles[one] for one in scenario.devices)
        for name, options, profile in zip(
            scenario.cluster.names, scenario.schedulers, by_server, strict=True
        ):
            check_scheduler(options, profile, f"server '{name}'")
        return model, by_server


def _with_gap(cluster: Cluster) -> Cluster:
    """Fill the number of a model that could not be loaded: a retired copy of the first model takes it."""
    number = len(cluster.models)
    first = cluster.models[0]
    copy = first.numbered(number)
    profiles = [record_of(profile, first).profile(copy) for profile in cluster.profiles]
    return cluster.with_model(copy, profiles).without([number])
