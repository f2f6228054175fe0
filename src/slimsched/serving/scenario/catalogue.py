"""The catalogue: finds models that are added while a cluster runs, and what they cost on its servers.

Live and in a replay the same folders give the same clusters and the same routers.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from msgspec import Struct

from slimsched.core.config import ConfigError, SlimError
from slimsched.models.package import CARD, DESCRIPTION, read_spec
from slimsched.models.quality import QualityTable
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import Profile, record_of
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import check_scheduler, load_profile, read_model
from slimsched.serving.scenario.scenario import Scenario

# -- A model repository: a folder of model folders from which a running server may load.
#
#     repository/cats/model.toml           one version, named in model.toml
#     repository/dogs/1/model.toml         or one sub-folder per version
#     repository/dogs/2/model.toml
#
# Names that clients send are only looked up among what is there: they never become part of a path.


class StoredModel(Struct, frozen=True, kw_only=True):
    """One version of a model in the repository; `problem` says why it cannot be loaded, if it cannot."""

    name: str
    version: str
    folder: str
    problem: str = ""


class UnknownModelError(SlimError):
    """A model, or a version, that the repository does not have."""


class ModelRepository:
    """Lists and finds what a folder holds; the folder is read each time."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"no model repository at {folder}; give a folder whose sub-folders are models")
        self.folder = folder.resolve()

    def models(self) -> list[StoredModel]:
        """List every version of every model, by name, oldest version first."""
        return [model for folder in self._folders(self.folder) for model in self._stored(folder)]

    @property
    def row_bytes(self) -> int:
        """Bytes of one example's inputs, for the model with the largest."""
        good = [Path(model.folder) for model in self.models() if not model.problem]
        return max((read_spec(folder).row_bytes for folder in good), default=0)

    def find(self, name: str, version: str = "") -> StoredModel:
        """Find a version of a model, the newest one if none is named."""
        stored = self.models()
        named = [model for model in stored if model.name == name]
        if not named:
            known = ", ".join(sorted({f"'{model.name}'" for model in stored})) or "no models"
            raise UnknownModelError(f"no model '{name}' in the model repository; it has {known}")
        chosen = [model for model in named if version in ("", model.version)]
        if not chosen:
            known = ", ".join(f"'{model.version}'" for model in named)
            raise UnknownModelError(
                f"no version '{version}' of '{name}' in the model repository; it has {known}"
            )
        return chosen[-1]

    def _stored(self, folder: Path) -> list[StoredModel]:
        if _is_model(folder):
            return [self._read(folder, folder.name, "")]
        versions = sorted(self._folders(folder), key=_age)
        return [self._read(one, folder.name, one.name) for one in versions if _is_model(one)]

    def _read(self, folder: Path, name: str, version: str) -> StoredModel:
        try:
            spec = read_spec(folder)
        except SlimError as error:
            return StoredModel(name=name, version=version or "1", folder=str(folder), problem=str(error))
        problem = ""
        if spec.name != name:
            problem = f"its folder is called '{name}', but its name is '{spec.name}'; rename one of them"
        elif version and spec.version != version:
            problem = (
                f"its folder says version '{version}', its model.toml '{spec.version}'; change one of them"
            )
        return StoredModel(name=name, version=spec.version, folder=str(folder), problem=problem)

    def _folders(self, folder: Path) -> list[Path]:
        """List the sub-folders; links that lead out of the repository are left out."""
        folders = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
        return [one for one in folders if one.resolve().is_relative_to(self.folder)]


def _is_model(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or (folder / CARD).is_file()


def _age(folder: Path) -> list[tuple[int, str]]:
    """Order versions as people count: 2 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.name)]


class Catalogue:
    """Reads models by their entries, once each, and makes clusters and routers for them.

    `prepare` does the slow part beforehand, in any thread: the gateway then only takes what is there.
    """

    def __init__(self, scenario: Scenario, router: str, seed: int = 0) -> None:
        self._scenario, self._router, self._seed = scenario, router, seed
        self._known: dict[int, tuple[ServedModel, tuple[Profile, ...]]] = {}
        self._ready: tuple[ModelsChanged, Cluster, Goal | None, Router] | None = None  # what was prepared

    def prepare(self, cluster: Cluster, change: ModelsChanged, goal: Goal | None) -> Cluster:
        """Make the cluster after a change, and its router; refuse a model that these servers cannot run."""
        self._ready = None
        changed = self.change(cluster, change)
        self._ready = change, changed, goal, self.router(changed, goal)
        return changed

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        """The cluster after models were added, others rated and others retired."""
        if self._ready is not None and self._ready[0] == change:
            return self._ready[1]
        for entry in change.added:
            while len(cluster.models) < entry.number:
                cluster = _with_gap(cluster)
            cluster = cluster.with_model(*self.find(entry))
        for one in change.rated:
            tree, accuracy = cluster.models[one.number].tree, np.array(one.accuracies)
            cluster = cluster.rated(one.number, QualityTable(tree, name=one.name, accuracy=accuracy))
        return cluster.without(change.retired) if change.retired else cluster

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        """Make a router for a cluster whose models have changed."""
        ready, self._ready = self._ready, None
        if ready is not None and ready[1] is cluster and ready[2] == goal:
            return ready[3]
        return make_router(self._router, cluster, self._seed, goal or self._scenario.goal)

    def find(self, entry: ModelEntry) -> tuple[ServedModel, tuple[Profile, ...]]:
        """Read a model, and find its profile on each server."""
        if (known := self._known.get(entry.number)) is not None:
            return known
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
        servers = zip(scenario.cluster.names, scenario.schedulers, by_server, strict=True)
        for name, options, profile in servers:
            check_scheduler(options, profile, f"server '{name}'")
        self._known[entry.number] = model, by_server
        return model, by_server

    def forget(self, number: int) -> None:
        """Read this model again when it is next asked for: it could not be served."""
        self._known.pop(number, None)

    def on(self, server: int) -> Callable[[ModelEntry], tuple[ServedModel, Profile]]:
        """What one server's scheduler asks when models change."""

        def find(entry: ModelEntry) -> tuple[ServedModel, Profile]:
            model, profiles = self.find(entry)
            return model, profiles[server]

        return find


def _with_gap(cluster: Cluster) -> Cluster:
    """Fill the number of a model that could not be loaded: a retired copy of the first model takes it."""
    number = len(cluster.models)
    first = cluster.models[0]
    copy = first.numbered(number)
    profiles = [record_of(profile, first).profile(copy) for profile in cluster.profiles]
    return cluster.with_model(copy, profiles).without([number])
