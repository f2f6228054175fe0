"""What the gateway answers over HTTP besides inference: health, models, goal, repository, shared memory."""

from collections.abc import Callable

import msgspec

from slimsched.serving.api.goal_control import GoalControl
from slimsched.serving.api.http_response import HttpResponse, json_page, require_method
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.refusal import NotFound, Unavailable
from slimsched.serving.api.repository import RepositoryControl, switched_off
from slimsched.serving.api.repository_request import RepositoryRequest
from slimsched.serving.api.request_reader import HttpRequest
from slimsched.serving.api.service import InferenceService
from slimsched.serving.api.shared_memory_pages import CUDA, SYSTEM, SharedMemoryPages
from slimsched.serving.api.token import Token

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
        self._shared_memory = SharedMemoryPages(service.regions)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request, or raise a refusal."""
        path = request.path.rstrip("/") or "/"
        if path in ("/v2/health/live", "/v2/health/ready"):
            require_method(request, "GET", "HEAD")
            return json_page(self._service.health() if path.endswith("ready") else {"live": True})
        page = self._assets.get(path)
        if page is None:
            self._token.check(request.headers.get("authorization", ""))
            page = self._pages.get(path)
        if page is not None:
            require_method(request, "GET", "HEAD")
            return page()
        parts = path.split("/")[1:]
        if parts[:1] != ["v2"]:
            raise NotFound(f"no path {request.path}; the protocol starts at /v2")
        if parts == ["v2"]:
            require_method(request, "GET", "HEAD")
            return json_page({**self._service.server_metadata(), "models": self._service.model_names()})
        if parts == ["v2", "goal"] and self._goal is not None:
            require_method(request, "GET", "HEAD", "PUT")
            return json_page(
                self._goal.change(bytes(request.body)) if request.method == "PUT" else self._goal.show()
            )
        if parts[1:2] == ["repository"]:
            return await self._ask_repository(request, parts[2:])
        if parts[1] in (SYSTEM, CUDA):
            return await self._shared_memory.answer(request, parts[1:])
        if parts[1:2] == ["models"] and len(parts) >= 3:
            return self._model(request, parts[2], parts[3:])
        raise NotFound(f"no path {request.path}; see /v2 and /v2/models/MODEL")

    def _model(self, request: HttpRequest, name: str, rest: list[str]) -> HttpResponse:
        version = ""
        if rest[:1] == ["versions"] and len(rest) >= 2:
            version, rest = rest[1], rest[2:]
        face = self._service.face(name, version)
        require_method(request, "GET", "HEAD")
        if rest == []:
            return json_page(face.metadata())
        if rest == ["ready"]:
            if not self._service.is_ready:
                raise Unavailable(f"model '{name}' is not ready")
            return json_page({"name": name, "ready": True})
        raise NotFound(f"no path {request.path}; a model has /, /ready and /infer")

    async def _ask_repository(self, request: HttpRequest, parts: list[str]) -> HttpResponse:
        if parts != ["index"] and (parts[:1] != ["models"] or len(parts) != 3):
            raise NotFound(f"no path {request.path}; see /v2/repository/index")
        require_method(request, "POST")
        if self._repository is None:
            raise switched_off()
        asked = read_body(_repository_request, request.body or b"{}", "a request to the repository")
        if parts == ["index"]:
            return json_page(self._repository.index(ready=asked.ready))
        _, name, step = parts
        if step == "load":
            await self._repository.load(name, asked.version())
        elif step == "unload":
            await self._repository.unload(name)
        else:
            raise NotFound(f"no path {request.path}; a model of the repository has /load and /unload")
        return json_page({})
