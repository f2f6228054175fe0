"""The model repository of a running server, as Triton's extension has it: list, load and unload.

A model is loaded and warm on every server before it takes over. A version that it replaces takes no new
requests from then on and goes once those under way are answered.
"""

import asyncio
import logging
from collections.abc import Sequence

from slimsched.core.config import SlimError
from slimsched.serving.api.refusal import BadRequest, Forbidden, NotFound, Unavailable
from slimsched.serving.api.service import InferenceService
from slimsched.serving.domain.model import ModelEntry, ModelsChanged
from slimsched.serving.domain.profile import record_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.processes import Engine, ModelChanger
from slimsched.serving.live.wire import HostModel
from slimsched.serving.scenario.catalogue import Catalogue, ModelRepository, StoredModel, UnknownModelError

log = logging.getLogger("slim.models")


class RepositoryControl:
    """Carries out what clients ask of the repository, one change at a time."""

    def __init__(
        self,
        repository: ModelRepository,
        service: InferenceService,
        cluster: LiveCluster,
        gateway: Gateway,
        catalogue: Catalogue,
        engine: Engine,
    ) -> None:
        if not isinstance(engine, ModelChanger):
            raise SlimError("--model-repository works with --engine local only; leave one of them out")
        self._repository, self._service, self._cluster = repository, service, cluster
        self._gateway, self._catalogue, self._engine = gateway, catalogue, engine
        self._one_at_a_time = asyncio.Lock()
        self._next = len(gateway.cluster.models)
        self._entries = {model.number: model.entry for model in gateway.cluster.models}
        self._draining: set[asyncio.Task[None]] = set()
        self._trouble: dict[tuple[str, str], str] = {}
        self._unloaded: set[str] = set()

    def index(self, *, ready: bool = False) -> list[dict[str, str]]:
        """List the models of the repository, and those served that are not in it, with their states."""
        serving = {(face.name, face.version) for face in self._service.faces}
        rows = [_row(name, version, "READY") for name, version in sorted(serving)]
        if not ready:
            rows += [
                _row(model.name, model.version, "UNAVAILABLE", self._reason(model))
                for model in self._repository.models()
                if (model.name, model.version) not in serving
            ]
        return sorted(rows, key=lambda row: (row["name"], row["version"]))

    async def load(self, name: str, version: str = "") -> None:
        """Load a model, or a version of it, and let it take over; raise a refusal that says what is wrong."""
        async with self._one_at_a_time:
            stored = await asyncio.to_thread(self._find, name, version)
            if not self._service.is_ready:
                raise Unavailable("no server is up at the moment; try again shortly")
            try:
                await self._load(stored)
            except SlimError as error:
                self._trouble[stored.name, stored.version] = str(error)
                raise BadRequest(f"cannot load model '{name}': {error}") from None
            self._trouble.pop((stored.name, stored.version), None)

    async def unload(self, name: str) -> None:
        """Take no new requests to a model; it goes once those under way are answered."""
        async with self._one_at_a_time:
            numbers = self._served(name)
            if not numbers:
                raise NotFound(f"model '{name}' is not loaded")
            await asyncio.to_thread(self._find, name, "")
            change = ModelsChanged(retired=tuple(numbers))
            await asyncio.to_thread(
                self._catalogue.prepare, self._gateway.cluster, change, self._gateway.goal
            )
            self._cluster.retire_models(numbers)
            self._unloaded.add(name)
            self._changed(numbers)
            log.info("model '%s' is unloaded", name)

    async def _load(self, stored: StoredModel) -> None:
        if stored.problem:
            raise SlimError(stored.problem)
        replaced = self._served(stored.name)
        weight = self._entries[replaced[0]].weight if replaced else 1.0
        entry = ModelEntry(number=self._next, source=stored.folder, weight=weight)
        self._next += 1  # also if it fails: some server may have begun with this number
        change = ModelsChanged(added=(entry,), retired=tuple(replaced))
        try:
            gateway = self._gateway
            after = await asyncio.to_thread(self._catalogue.prepare, gateway.cluster, change, gateway.goal)
            model = after.models[entry.number]
            messages = [HostModel(entry=entry, profile=record_of(one, model)) for one in after.profiles]
            await self._cluster.add_model(entry, messages, replacing=replaced)
        except BaseException:
            self._catalogue.forget(entry.number)
            raise
        self._entries[entry.number] = entry
        self._unloaded.discard(stored.name)
        self._changed(replaced)
        log.info("model '%s', version %s, is loaded", stored.name, stored.version)

    def _changed(self, retired: Sequence[int]) -> None:
        """Let clients see the models as they are now, and let those that went finish their requests."""
        self._service.use_models()
        self._tell_engine()
        for number in retired:
            task = asyncio.create_task(self._drain(number))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def _drain(self, number: int) -> None:
        await self._cluster.drain_model(number)
        del self._entries[number]
        self._tell_engine()

    def _tell_engine(self) -> None:
        self._engine.set_models(list(self._entries.values()), self._gateway.cluster)

    def _served(self, name: str) -> list[int]:
        return [model.number for model in self._gateway.cluster.active if model.name == name]

    def _find(self, name: str, version: str) -> StoredModel:
        try:
            return self._repository.find(name, version)
        except UnknownModelError as error:
            raise NotFound(str(error)) from None

    def _reason(self, model: StoredModel) -> str:
        trouble = model.problem or self._trouble.get((model.name, model.version), "")
        return trouble or ("unloaded" if model.name in self._unloaded else "not loaded")


def switched_off() -> Forbidden:
    """What a server without a repository answers."""
    return Forbidden(
        "this server does not load models on request; start it with --model-repository FOLDER to allow that"
    )


def _row(name: str, version: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}
