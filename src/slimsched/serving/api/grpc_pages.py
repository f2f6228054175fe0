"""What the gateway answers over gRPC besides inference: health, models, the repository and shared memory."""

from collections.abc import Awaitable, Callable
from typing import Any

from slimsched.serving.api.grpc_message import parse, pb, value_of
from slimsched.serving.api.refusal import NotFound
from slimsched.serving.api.repository import RepositoryControl, switched_off
from slimsched.serving.api.repository_request import version_of
from slimsched.serving.api.service import InferenceService
from slimsched.serving.api.shared_memory_control import read_registration

Headers = tuple[tuple[str, str], ...]
"""The metadata of a call."""
RawMethod = Callable[[bytes, Headers], Awaitable[bytes]]
"""A method that takes and gives messages as bytes; it may raise refusals."""

METHODS = (
    "ServerLive",
    "ServerReady",
    "ModelReady",
    "ServerMetadata",
    "ModelMetadata",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
)
"""All methods of the protocol but inference."""


class GrpcPages:
    """Answers these methods from what the service knows."""

    def __init__(self, service: InferenceService, repository: RepositoryControl | None = None) -> None:
        self._service, self._repository = service, repository

    @property
    def methods(self) -> dict[str, RawMethod]:
        """Each method by its name."""
        return {name: self._method(name) for name in METHODS}

    def _method(self, name: str) -> RawMethod:
        method = getattr(self, f"_{name}")
        kind = getattr(pb, f"{name}Request")

        async def answer(raw: bytes, _: Headers) -> bytes:
            return bytes((await method(parse(raw, kind))).SerializeToString())

        return answer

    async def _ServerLive(self, request: Any) -> Any:  # noqa: N802
        return pb.ServerLiveResponse(live=True)

    async def _ServerReady(self, request: Any) -> Any:  # noqa: N802
        return pb.ServerReadyResponse(ready=self._service.is_ready)

    async def _ModelReady(self, request: Any) -> Any:  # noqa: N802
        try:
            self._service.face(request.name, request.version)
        except NotFound:  # as Triton answers: a model that is not there is not ready
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=self._service.is_ready)

    async def _ServerMetadata(self, request: Any) -> Any:  # noqa: N802
        return pb.ServerMetadataResponse(**self._service.server_metadata())

    async def _ModelMetadata(self, request: Any) -> Any:  # noqa: N802
        face = self._service.face(request.name, request.version)
        return pb.ModelMetadataResponse(**face.metadata())

    async def _RepositoryIndex(self, request: Any) -> Any:  # noqa: N802
        models = self._opened().index(ready=request.ready)
        return pb.RepositoryIndexResponse(models=models)

    async def _RepositoryModelLoad(self, request: Any) -> Any:  # noqa: N802
        control = self._opened()
        parameters: dict[str, Any] = {name: value_of(one) for name, one in request.parameters.items()}
        await control.load(request.model_name, version_of(parameters))
        return pb.RepositoryModelLoadResponse()

    async def _RepositoryModelUnload(self, request: Any) -> Any:  # noqa: N802
        await self._opened().unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def _SystemSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        regions = {one["name"]: one for one in self._service.regions.status(request.name)}
        return pb.SystemSharedMemoryStatusResponse(regions=regions)

    async def _SystemSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        given = {"key": request.key, "offset": request.offset, "byte_size": request.byte_size}
        await self._service.regions.register(request.name, read_registration(given))
        return pb.SystemSharedMemoryRegisterResponse()

    async def _SystemSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        await self._service.regions.unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def _CudaSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        self._service.regions.refuse_cuda("status", request.name)
        return pb.CudaSharedMemoryStatusResponse()

    async def _CudaSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        self._service.regions.refuse_cuda("register", request.name)
        return pb.CudaSharedMemoryRegisterResponse()

    async def _CudaSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        self._service.regions.refuse_cuda("unregister", request.name)
        return pb.CudaSharedMemoryUnregisterResponse()

    def _opened(self) -> RepositoryControl:
        if self._repository is None:
            raise switched_off()
        return self._repository
