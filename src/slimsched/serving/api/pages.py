"""What the gateway answers besides inference: health, models, goal, repository, shared memory, OpenAPI."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from grpc_health.v1 import health_pb2
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched import __version__
from slimsched.core.config import ConfigError, SlimError, read_small_file
from slimsched.models.spec import TensorSpec
from slimsched.serving.api.calls import ModelApi, accepted_types
from slimsched.serving.api.grpc_codec import parse, pb, value_of
from slimsched.serving.api.http_requests import (
    POST,
    READ,
    READ_OR_POST,
    READ_OR_PUT,
    HttpRequest,
    HttpResponse,
    json_page,
    require_method,
)
from slimsched.serving.api.limits import (
    BadRequest,
    Forbidden,
    Limits,
    NotFound,
    NotOffered,
    RefusalError,
    Token,
    Unavailable,
    read_body,
)
from slimsched.serving.api.service import OPEN_METRICS, InferenceService, open_metrics
from slimsched.serving.api.shared_memory import Registration, SharedMemoryControl, read_registration
from slimsched.serving.domain.model import ModelEntry, ModelsChanged
from slimsched.serving.domain.profile import WHILE_BUSY, record_of
from slimsched.serving.gateway.goal import Goal, check_affordable, format_goal, parse_goal, reachable_goal
from slimsched.serving.live.wire import HostModel
from slimsched.serving.routers.guard import goal_of
from slimsched.serving.telemetry.live_view import Frame
from slimsched.serving.telemetry.verdict import worst

if TYPE_CHECKING:
    from slimsched.serving.gateway.gateway import Gateway
    from slimsched.serving.live.cluster import LiveCluster
    from slimsched.serving.live.engine import LocalEngine
    from slimsched.serving.scenario.catalogue import Catalogue, ModelRepository, StoredModel

# -- The goal of a running cluster: show it, change it without a restart, and keep it across restarts.

GoalText = Annotated[str, Meta(max_length=1000, examples=["accuracy>=75, p99<=60ms, min energy"])]
ModelName = Annotated[
    str, Meta(max_length=1000, description="the model whose goal it is; left out: all without their own")
]


class GoalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of PUT /v2/goal: the goal of one model, or of all that have none of their own.

    With a model, null as the goal means that the model has no goal of its own any more.
    """

    goal: GoalText | None
    model: ModelName | None = None


LARGEST_BYTES = 2**20
"""How large the file with the saved goal may be."""


class _SavedGoal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The saved goal, and the router with which the server had been started."""

    started_with: str
    goal: str
    models: dict[str, str] = {}


_request = msgspec.json.Decoder(GoalRequest)


class GoalState:
    """Keeps the goal in a file.

    The saved goal applies only if the server starts with the same router and goal again; otherwise the new
    command line wins.
    """

    def __init__(self, path: Path, started_with: str) -> None:
        self._path, self._started_with = path, started_with

    def read(self) -> Goal | None:
        """Return the saved goal, or None if there is none for this command line."""
        try:
            kept = msgspec.json.decode(read_small_file(self._path, LARGEST_BYTES), type=_SavedGoal)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{self._path} does not hold a saved goal ({error}); remove it, or name another with --state"
            ) from None
        if kept.started_with != self._started_with:
            return None
        own = {model: parse_goal(text) for model, text in kept.models.items()}
        return replace(parse_goal(kept.goal), by_model=own)

    def write(self, goal: Goal) -> None:
        """Save a goal. The file is replaced in one step, so a reader never sees half of it."""
        own = {model: format_goal(one) for model, one in goal.by_model.items()}
        kept = _SavedGoal(started_with=self._started_with, goal=format_goal(goal), models=own)
        beside = self._path.with_name(f"{self._path.name}.new")
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is not a regular file; name another with --state")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(kept))
            os.replace(beside, self._path)
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path} ({error}); choose a file that can be written"
            ) from None


class GoalControl:
    """Shows and changes the goal. Requests under way meet the new goal at their next segment.

    `set_goal` tells the gateway of a change, so that the change is an event in the log like any other.
    """

    def __init__(
        self,
        gateway: "Gateway",
        set_goal: Callable[[Goal], None],
        state: GoalState | None,
        frame: Callable[[], Frame],
    ) -> None:
        """`frame` says how things stand now."""
        self._gateway, self._set, self._state, self._frame = gateway, set_goal, state, frame

    def resume(self) -> str | None:
        """Apply the goal that was saved before a restart and return it; None if none was saved."""
        kept = None if self._state is None else self._state.read()
        if kept is not None and self.goal is not None:
            for model in self._gateway.cluster.active:
                reachable_goal(format_goal(kept.of(model.name)), [model])
            check_affordable(kept, self._gateway.cluster)
            self._set(kept)
            return format_goal(kept)
        return None

    @property
    def goal(self) -> Goal | None:
        """The current goal, or None if the router does not follow one."""
        return goal_of(self._gateway.router)

    def show(self) -> dict[str, object]:
        """Return the goal as text and as numbers, and whether each of its limits is kept."""
        if (goal := self.goal) is None:
            return {"goal": None, "reason": "this server's router follows no goal; start it with --goal"}
        own = {"models": {name: _shown(one) for name, one in goal.by_model.items()}} if goal.by_model else {}
        about = {"note": self.note} if self.note else {}
        frame = self._frame()
        judged = {"verdict": worst(frame.limits), "limits": frame.limits, "run_limits": frame.run_limits}
        return {**_shown(goal), **own, **about, **judged}

    @property
    def note(self) -> str:
        """What `min energy` minimises here, where a goal says so and no energy was measured."""
        goals = () if self.goal is None else (self.goal, *self.goal.by_model.values())
        parts = [part for profile in self._gateway.cluster.profiles for part in profile.parts]
        sources = {part.energy_source for part in parts}
        if "energy" not in {one.objective for one in goals} or any("modelled" not in one for one in sources):
            return ""
        what = "device time" if all(WHILE_BUSY in one for one in sources) else "modelled energy"
        return f"min energy minimises {what}: energy is {'; '.join(sorted(sources))}"

    def change(self, body: bytes | bytearray) -> dict[str, object]:
        """Set the goal that a request's body holds, and return it."""
        if self.goal is None:
            raise BadRequest("this server's router follows no goal; start it with --goal or --router goal")
        asked = read_body(_request, body, 'such as {"goal": "accuracy>=75"}')
        try:
            goal = self._changed(self.goal, asked)
            check_affordable(goal, self._gateway.cluster)
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        if self._state is not None:
            try:
                self._state.write(goal)
            except ConfigError as error:
                raise Unavailable(f"the goal was not changed: {error}") from None
        self._set(goal)
        return self.show()

    def _changed(self, goal: Goal, asked: GoalRequest) -> Goal:
        """The goal as a request wants it; a general goal leaves those of single models as they are."""
        models = self._gateway.cluster.active
        if asked.model is None:
            if asked.goal is None:
                raise BadRequest('null is no goal; send {"goal": "max accuracy"} to ask for nothing else')
            others = [model for model in models if model.name not in goal.by_model]
            return replace(reachable_goal(asked.goal, others), by_model=goal.by_model)
        named = [model for model in models if model.name == asked.model]
        if not named:
            known = ", ".join(f"'{model.name}'" for model in models)
            raise NotFound(f"unknown model '{asked.model}'; this server has {known}")
        own = {name: one for name, one in goal.by_model.items() if name != asked.model}
        if asked.goal is not None:
            own[asked.model] = reachable_goal(asked.goal, named)
        return replace(goal, by_model=own)


def _shown(goal: Goal) -> dict[str, object]:
    return {
        "goal": format_goal(goal),
        "objective": goal.objective,
        "min_accuracy": goal.min_accuracy or None,
        "p99_ms": 1e3 * goal.p99_s or None,
        "p95_ms": 1e3 * goal.p95_s or None,
        "mean_ms": 1e3 * goal.mean_s or None,
        "energy_mj": 1e3 * goal.energy_j or None,
        "power_w": goal.power_w or None,
    }


# -- The model repository of a running server, as Triton's extension has it: list, load and unload.
#
# A model is loaded and warm on every server before it takes over. A version that it replaces takes no new
# requests from then on and goes once those under way are answered.

log = logging.getLogger("slim.models")


class RepositoryControl:
    """Carries out what clients ask of the repository, one change at a time."""

    EXTENSIONS = ("model_repository", "model_repository(unload_dependents)")
    """What a server with a repository offers besides, as the Open Inference Protocol names it."""

    def __init__(
        self,
        repository: "ModelRepository",
        service: InferenceService,
        cluster: "LiveCluster",
        gateway: "Gateway",
        catalogue: "Catalogue",
        engine: "LocalEngine",
    ) -> None:
        self._repository, self._service, self._cluster = repository, service, cluster
        self._gateway, self._catalogue, self._engine = gateway, catalogue, engine
        self._one_at_a_time = asyncio.Lock()
        self._next = len(gateway.cluster.models)
        self._entries = {model.number: model.entry for model in gateway.cluster.models}
        self._draining: set[asyncio.Task[None]] = set()
        self._trouble: dict[tuple[str, str], str] = {}
        self._unloaded: set[str] = set()

    def others(self) -> list[dict[str, str]]:
        """List the models of the repository that are not served."""
        serving = {(api.name, api.version) for api in self._service.apis.values()}
        return [
            _row(model.name, model.version, "UNAVAILABLE", self._reason(model))
            for model in self._repository.models()
            if (model.name, model.version) not in serving
        ]

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

    async def load_again(self) -> None:
        """Load what is served again from its folder, as SIGHUP asks; what cannot be loaded stays as it is."""
        for name in list(self._service.apis):
            try:
                await self.load(name)
            except RefusalError as error:
                log.error("model '%s' stays as it is: %s", name, error)

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
            self._cluster.change_models(change)
            self._unloaded.add(name)
            self._changed(numbers)
            log.info("model '%s' is unloaded", name)

    async def _load(self, stored: "StoredModel") -> None:
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
            await self._cluster.add_model(entry.number, messages)
            self._cluster.change_models(change)
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

    def _find(self, name: str, version: str) -> "StoredModel":
        from slimsched.serving.scenario.catalogue import UnknownModelError

        try:
            return self._repository.find(name, version)
        except UnknownModelError as error:
            raise NotFound(str(error)) from None

    def _reason(self, model: "StoredModel") -> str:
        trouble = model.problem or self._trouble.get((model.name, model.version), "")
        return trouble or ("unloaded" if model.name in self._unloaded else "not loaded")


def opened(repository: RepositoryControl | None) -> RepositoryControl:
    """Return the repository; refuse where the operator has given none."""
    if repository is None:
        raise Forbidden(
            "this server does not load models on request; "
            "start it with --model-repository FOLDER to allow that"
        )
    return repository


def index(
    service: InferenceService, repository: RepositoryControl | None, *, ready: bool = False
) -> list[dict[str, str]]:
    """List the models that are served, and those of the repository, if there is one, with their states."""
    rows = [_row(api.name, api.version, "READY") for api in service.apis.values()]
    rows += [] if ready or repository is None else repository.others()
    return sorted(rows, key=lambda row: (row["name"], row["version"]))


def no_setting(what: str) -> NotOffered:
    """Refuse an extension of Triton that changes the traces or the logs of a running server."""
    option = "--otel" if what == "trace" else "--log-format"
    return NotOffered(f"this server has no {what} settings to show or change; start it with {option}")


def _row(name: str, version: str, state: str, reason: str = "") -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}


# -- What clients send to the model repository.

Value = str | int | bool


class RepositoryRequest(Struct, frozen=True, kw_only=True):
    """The body of a request to the repository; Triton's clients send it, others may leave it out."""

    ready: bool = False
    parameters: dict[str, Value] = {}


def version_of(parameters: dict[str, Value]) -> str:
    """Read the parameters of a load. Configurations and files are the operator's: they are not taken."""
    for name in parameters:
        if name != "version":
            raise BadRequest(
                f"parameter '{name}' is not accepted: models are loaded as they lie in the repository; "
                "only 'version' may be given"
            )
    return str(parameters.get("version", ""))


# -- The HTTP API as an OpenAPI 3.1 document.

SCHEMAS = "#/components/schemas/"
_WHY = {
    "400": "The request is wrong; the message says where.",
    "401": "A token is required.",
    "403": "The operator does not allow it.",
    "404": "No such path, model or version.",
    "405": "The path exists, but not for this method.",
    "413": "The body is too large.",
    "422": "The model could not run on this input.",
    "429": "Too much work is under way; see Retry-After.",
    "503": "Starting, draining, or no server is up; see Retry-After.",
    "504": "The deadline passed or cannot be met.",
}


ANY_OBJECT = {"type": "object"}
TEXT = {"type": "string"}


def document(service: InferenceService) -> dict[str, Any]:
    """Return the OpenAPI document of the models that are served."""
    _, schemas = msgspec.json.schema_components(
        [GoalRequest, Registration], ref_template=f"{SCHEMAS}{{name}}"
    )
    told = {"name": TEXT, "datatype": TEXT, "shape": _list({"type": "integer"}), "data": {"type": "array"}}
    tensor = _object(told, "name", "datatype", "shape")
    schemas |= {"Error": _object({"error": TEXT}, "error"), "Tensor": tensor}
    change_goal = _operation(
        "Change the goal",
        {"type": "object", "required": ["goal"]},
        *("400", "401", "404", "413"),
        body=_ref("GoalRequest"),
    )
    paths: dict[str, Any] = {
        "/v2": {"get": _get("Name and version of the server, and its models")},
        "/v2/health/live": {"get": _get("Whether the process is alive", "405")},
        "/v2/health/ready": {"get": _get("Whether requests are accepted", "405", "503")},
        "/v2/goal": {"get": _get("The current goal"), "put": change_goal},
        "/v2/machine": {"get": _get("What was found here and chosen for it")},
        "/v2/models/stats": {"get": _get("Statistics of all models")},
        "/v2/repository/index": {
            "post": _post("List models", _list(ANY_OBJECT), {"ready": {"type": "boolean"}})
        },
        **(_repository() if "model_repository" in service.extensions else {}),
        **(_shared_memory() if "system_shared_memory" in service.extensions else {}),
        "/metrics": {"get": _get("Metrics in the Prometheus text format", kind="text/plain")},
    }
    for api in service.apis.values():
        model = f"/v2/models/{api.name}"
        for path in (model, f"{model}/versions/{api.version}"):
            paths[path] = {"get": _get("The model's inputs and outputs")}
            paths[f"{path}/config"] = {"get": _get("The model's configuration, in Triton's words")}
            paths[f"{path}/stats"] = {"get": _get("How many calls it answered, and what they took")}
            paths[f"{path}/ready"] = {"get": _get("Whether the model is ready", "401", "503")}
            paths[f"{path}/infer"] = {"post": _infer(service.limits, api)}
    for path, operations in paths.items():
        for method, operation in operations.items():
            operation["operationId"] = f"{method}_{path.strip('/').replace('/', '_')}"
    token = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slim Scheduler", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _get(about: str, *codes: str, kind: str = "application/json") -> dict[str, Any]:
    content = {kind: {"schema": TEXT if kind == "text/plain" else ANY_OBJECT}}
    return {"summary": about, "responses": _responses(content, *(codes or ("401",)))}


def _operation(
    about: str, answer: dict[str, Any], *codes: str, body: dict[str, Any] | None = None, required: bool = True
) -> dict[str, Any]:
    """An operation that answers with JSON like this, or refuses with one of these codes."""
    asked = {} if body is None else {"requestBody": {"required": required, "content": _json(body)}}
    return {"summary": about, **asked, "responses": _responses(_json(answer), *codes)}


def _at(name: str, operation: dict[str, Any]) -> dict[str, Any]:
    """An operation with a part of its path as parameter."""
    return {**operation, "parameters": [{"name": name, "in": "path", "required": True, "schema": TEXT}]}


def _post(about: str, answer: dict[str, Any], properties: dict[str, Any], *codes: str) -> dict[str, Any]:
    body = {"type": "object", "properties": properties}
    return _operation(about, answer, "400", "401", *codes, body=body, required=False)


def _repository() -> dict[str, Any]:
    """The model repository, where the operator allows it."""

    version = {"version": {**TEXT, "description": "the newest one if left out"}}
    loaded, path = {"parameters": {"type": "object", "properties": version}}, "/v2/repository/models/{model}"
    load = _post("Load a model, or a new version of it", ANY_OBJECT, loaded, "403", "404", "503")
    unload = _post("Unload a model", ANY_OBJECT, {"parameters": ANY_OBJECT}, "403", "404")
    return {
        f"{path}/load": {"post": _at("model", load)},
        f"{path}/unload": {"post": _at("model", unload)},
    }


def _shared_memory() -> dict[str, Any]:
    """The registration of shared memory, where the operator allows it."""
    root, path = "/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"
    register = _operation("Register a region", ANY_OBJECT, "400", "401", body=_ref("Registration"))
    status = _operation("Describe a region", _list(ANY_OBJECT), "401", "404")
    return {
        f"{root}/status": {"get": _operation("List the regions", _list(ANY_OBJECT), "401")},
        f"{root}/unregister": {"post": _operation("Forget all", ANY_OBJECT, "401")},
        f"{path}/register": {"post": _at("region", register)},
        f"{path}/status": {"get": _at("region", status)},
        f"{path}/unregister": {"post": _at("region", _operation("Forget a region", ANY_OBJECT, "401"))},
    }


def _infer(limits: Limits, api: ModelApi) -> dict[str, Any]:
    inputs = [_input(tensor, limits.examples_per_request) for tensor in api.spec.inputs]
    items = inputs[0] if len(inputs) == 1 else {"oneOf": inputs}
    output = _object({"name": {"enum": list(api.outputs)}}, "name")
    body = _object(
        {
            "id": TEXT,
            "inputs": {**_list(items), "minItems": len(inputs), "maxItems": len(inputs)},
            "outputs": {**_list(output), "uniqueItems": True},
            "parameters": {"type": "object", "properties": _terms(api)},
        },
        "inputs",
    )
    told = {"outputs": _list(_ref("Tensor")), "parameters": ANY_OBJECT}
    answer = _object({"model_name": TEXT, "model_version": TEXT, **told}, "model_name", *told)
    codes = ("400", "401", "413", "422", "429", "503", "504")
    return _operation(f"Run {api.name}", answer, *codes, body=body)


def _input(tensor: TensorSpec, most: int) -> dict[str, Any]:
    """One input tensor with its data in the JSON."""
    sizes = [{"type": "integer", "minimum": 1, "maximum": most}, *({"const": size} for size in tensor.shape)]
    fields = {
        "name": {"const": tensor.name},
        "shape": {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)},
        "datatype": {"enum": list(accepted_types(tensor))},
        "data": _list({"type": "number"}),
    }
    return _object(fields, *fields)


def _terms(api: ModelApi) -> dict[str, Any]:
    above_zero = {"type": "number", "exclusiveMinimum": 0}
    return {
        "deadline_ms": above_zero,
        "timeout": {**above_zero, "description": "deadline in microseconds, Triton's name for it"},
        "priority": {"type": "integer", "minimum": -1000, "maximum": 1000},
        "min_accuracy": {"type": "number", "minimum": 0, "maximum": 100},
        "max_energy_mj": {"type": "number", "minimum": 0},
        "plan": {"enum": [api.spec.text(plan) for plan in api.spec.plans]},
    }


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"{SCHEMAS}{name}"}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _responses(content: dict[str, Any], *codes: str) -> dict[str, Any]:
    refusals = {code: {"description": _WHY[code], "content": _json(_ref("Error"))} for code in codes}
    return {"200": {"description": "Done.", "content": content}, **refusals}


# -- The paths of Triton's shared memory extensions over HTTP.

SYSTEM, CUDA = "systemsharedmemory", "cudasharedmemory"

_registration = msgspec.json.Decoder(Registration)


async def shared_memory_page(control: SharedMemoryControl, request: HttpRequest, parts: list[str]) -> Any:
    """Carry out what a path that begins with one of the two kinds asks for, and return what it says."""
    match parts:
        case [kind, "status" | "unregister" as step]:
            name = ""
        case [kind, "region", _, *_, "status" | "unregister" | "register" as step]:
            name = "/".join(parts[2:-1])  # Triton's clients leave slashes as they are
        case _:
            raise NotFound(f"no path {request.path}; see /v2/{parts[0]}/status")
    require_method(request, *(READ if step == "status" else POST))
    if kind == CUDA:
        control.refuse_cuda(step, name)
        return [] if step == "status" else {}
    if step == "status":
        return control.status(name)
    if step == "register":
        given = read_body(_registration, request.body, "a registration of shared memory")
        await control.register(name, given)
    else:
        await control.unregister(name)
    return {}


# -- What the gateway answers over gRPC besides inference: health, models, the repository and shared memory.

Headers = tuple[tuple[str, str], ...]
"""The metadata of a call."""
RawMethod = Callable[[bytes, Headers], Awaitable[bytes]]
"""A method that takes and gives messages as bytes; it may raise refusals."""

SERVICE, HEALTH = "inference.GRPCInferenceService", "/grpc.health.v1.Health"
CHECK = f"{HEALTH}/Check"
"""The standard question after health: of the server as a whole, or of one model."""

METHODS = (
    CHECK,
    *[
        f"/{SERVICE}/{method.name}"
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
        if not method.name.endswith("Infer")
    ],
)
"""The paths of all methods but inference and streams."""


def grpc_pages(service: InferenceService, repository: RepositoryControl | None) -> dict[str, RawMethod]:
    """Return these methods by path; they answer from what the service knows."""

    def method(path: str) -> RawMethod:
        name = path.rpartition("/")[2]
        start, module = ("HealthCheck", health_pb2) if path == CHECK else (name, pb)
        request, response = getattr(module, f"{start}Request"), getattr(module, f"{start}Response")

        async def answer(raw: bytes, _: Headers) -> bytes:
            fields = await _carry_out(service, repository, name, parse(raw, request))
            return bytes(response(**fields).SerializeToString())

        return answer

    return {path: method(path) for path in METHODS}


async def _carry_out(
    service: InferenceService, repository: RepositoryControl | None, name: str, asked: Any
) -> dict[str, Any]:
    """Carry a method out; return the fields of its response."""
    match name:
        case "Check":
            if asked.service not in ("", SERVICE):
                service.api(asked.service)
            return {"status": "SERVING" if service.is_ready else "NOT_SERVING"}
        case "ServerLive":
            return {"live": True}
        case "ServerReady":
            return {"ready": service.is_ready}
        case "ServerMetadata":
            return service.server_metadata()
        case "ModelReady":
            try:
                service.api(asked.name, asked.version)
            except NotFound:  # as Triton answers: a model that is not there is not ready
                return {"ready": False}
            return {"ready": service.is_ready}
        case "ModelMetadata":
            return service.api(asked.name, asked.version).metadata()
        case "ModelConfig":
            return {"config": service.api(asked.name, asked.version).config(service.limits.most[0])}
        case "ModelStatistics":
            return service.statistics(asked.name, asked.version)
        case "TraceSetting" | "LogSettings":
            raise no_setting(name.partition("Setting")[0].lower())
        case "RepositoryIndex":
            return {"models": index(service, repository, ready=asked.ready)}
        case "RepositoryModelLoad":
            control = opened(repository)
            parameters: dict[str, Any] = {key: value_of(one) for key, one in asked.parameters.items()}
            await control.load(asked.model_name, version_of(parameters))
        case "RepositoryModelUnload":
            await opened(repository).unload(asked.model_name)
        case "SystemSharedMemoryStatus":
            return {"regions": {one["name"]: one for one in service.regions.status(asked.name)}}
        case "SystemSharedMemoryRegister":
            given = {"key": asked.key, "offset": asked.offset, "byte_size": asked.byte_size}
            await service.regions.register(asked.name, read_registration(given))
        case "SystemSharedMemoryUnregister":
            await service.regions.unregister(asked.name)
        case _:
            service.regions.refuse_cuda(name.partition("Memory")[2].lower(), asked.name)
    return {}


# -- What the gateway answers over HTTP besides inference: health, models, goal, repository, shared memory.

PageHandler = Callable[[], HttpResponse]

_repository_request = msgspec.json.Decoder(RepositoryRequest)


class Pages:
    """Maps paths to what the service knows. `pages` need the token; `assets` hold no secrets."""

    def __init__(
        self,
        service: InferenceService,
        *,
        token: str = "",
        pages: dict[str, PageHandler] | None = None,
        goal: GoalControl | None = None,
        repository: RepositoryControl | None = None,
        assets: dict[str, PageHandler] | None = None,
    ) -> None:
        self._service, self._token = service, Token(token)
        self._pages, self._assets = pages or {}, assets or {}
        self._goal, self._repository = goal, repository

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request, or raise a refusal."""
        path = request.path.rstrip("/") or "/"
        if path in ("/v2/health/live", "/v2/health/ready"):
            require_method(request, *READ)
            return json_page(self._service.health() if path.endswith("ready") else {"live": True})
        page = self._assets.get(path)
        if page is None:
            self._token.check(request.headers.get("authorization", ""))
            page = self._pages.get(path)
        if page is not None:
            require_method(request, *READ)
            response = page()
            if path == "/metrics" and OPEN_METRICS in request.headers.get("accept", ""):
                kind = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
                body = open_metrics(response.body.decode()).encode()
                return HttpResponse(status=200, body=body, content_type=kind)
            return response
        parts = path.split("/")[1:]
        if parts[:1] != ["v2"]:
            raise NotFound(f"no path {request.path}; the protocol starts at /v2")
        if parts == ["v2"]:
            require_method(request, *READ)
            return json_page({**self._service.server_metadata(), "models": list(self._service.apis)})
        if parts[1:] == ["logging"] or parts[-2:] == ["trace", "setting"]:
            require_method(request, *READ_OR_POST)
            raise no_setting("log" if parts[1] == "logging" else "trace")
        if parts[1:] == ["models", "stats"]:
            require_method(request, *READ)
            return json_page(self._service.statistics())
        if parts == ["v2", "goal"] and self._goal is not None:
            require_method(request, *READ_OR_PUT)
            return json_page(
                self._goal.change(bytes(request.body)) if request.method == "PUT" else self._goal.show()
            )
        if parts[1:2] == ["repository"]:
            return await self._ask_repository(request, parts[2:])
        if parts[1] in (SYSTEM, CUDA):
            return json_page(await shared_memory_page(self._service.regions, request, parts[1:]))
        if parts[1:2] == ["models"] and len(parts) >= 3:
            return self._model(request, parts[2], parts[3:])
        raise NotFound(f"no path {request.path}; see /v2 and /v2/models/MODEL")

    def _model(self, request: HttpRequest, name: str, rest: list[str]) -> HttpResponse:
        version = ""
        if rest[:1] == ["versions"] and len(rest) >= 2:
            version, rest = rest[1], rest[2:]
        api = self._service.api(name, version)
        require_method(request, *READ)
        if rest == []:
            return json_page(api.metadata())
        if rest == ["config"]:
            return json_page(api.config(self._service.limits.most[0]))
        if rest == ["stats"]:
            return json_page(self._service.statistics(name, version))
        if rest == ["ready"]:
            if not self._service.is_ready:
                raise Unavailable(f"model '{name}' is not ready")
            return json_page({"name": name, "ready": True})
        raise NotFound(f"no path {request.path}; a model has /, /config, /ready, /stats and /infer")

    async def _ask_repository(self, request: HttpRequest, parts: list[str]) -> HttpResponse:
        if parts != ["index"] and (parts[:1] != ["models"] or len(parts) != 3):
            raise NotFound(f"no path {request.path}; see /v2/repository/index")
        require_method(request, *POST)
        repository = self._repository if parts == ["index"] else opened(self._repository)
        asked = read_body(_repository_request, request.body or b"{}", "a request to the repository")
        if repository is None or parts == ["index"]:
            return json_page(index(self._service, repository, ready=asked.ready))
        _, name, step = parts
        if step == "load":
            await repository.load(name, version_of(asked.parameters))
        elif step == "unload":
            await repository.unload(name)
        else:
            raise NotFound(f"no path {request.path}; a model of the repository has /load and /unload")
        return json_page({})
