"""The paths of Triton's shared memory extensions over HTTP."""

import msgspec

from slimsched.serving.api.http_response import HttpResponse, json_page, require_method
from slimsched.serving.api.json_body import read_body
from slimsched.serving.api.refusal import NotFound
from slimsched.serving.api.request_reader import HttpRequest
from slimsched.serving.api.shared_memory_control import Registration, SharedMemoryControl

SYSTEM, CUDA = "systemsharedmemory", "cudasharedmemory"

_registration = msgspec.json.Decoder(Registration)


class SharedMemoryPages:
    """Answers `/v2/systemsharedmemory/…` and `/v2/cudasharedmemory/…`, where nothing is offered."""

    def __init__(self, control: SharedMemoryControl) -> None:
        self._control = control

    async def answer(self, request: HttpRequest, parts: list[str]) -> HttpResponse:
        """Answer a request for a path that begins with one of the two kinds."""
        match parts:
            case [kind, "status" | "unregister" as step]:
                name = ""
            case [kind, "region", _, *_, "status" | "unregister" | "register" as step]:
                name = "/".join(parts[2:-1])  # Triton's clients leave slashes as they are
            case _:
                raise NotFound(f"no path {request.path}; see /v2/{parts[0]}/status")
        if step == "status":
            require_method(request, "GET", "HEAD")
        else:
            require_method(request, "POST")
        if kind == CUDA:
            self._control.refuse_cuda(step, name)
            return json_page([] if step == "status" else {})
        if step == "status":
            return json_page(self._control.status(name))
        if step == "register":
            given = read_body(_registration, request.body, "a registration of shared memory")
            await self._control.register(name, given)
        else:
            await self._control.unregister(name)
        return json_page({})
