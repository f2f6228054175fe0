"""What a front process does not know itself it asks the gateway, over Unix sockets of the same protocols."""

import asyncio
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import grpc

from slimsched.serving.api.grpc_pages import METHODS, Headers, RawMethod
from slimsched.serving.api.grpc_server import SERVICE
from slimsched.serving.api.http_response import HttpResponse
from slimsched.serving.api.refusal import Unavailable
from slimsched.serving.api.request_reader import HttpRequest

HEAD_LIMIT_BYTES = 64 * 2**10
PART_BYTES = 64 * 2**10
PLAIN = "/:@!$&'()*+,;=~"
"""Characters of a path that need no escapes."""
PASSED_ON = frozenset({"authorization", "content-type", "accept"})
"""Headers that the gateway may want to see."""
OWN = frozenset({"content-type", "content-length", "connection", "date"})
"""Headers that this process writes itself."""


class HttpForwarding:
    """Passes requests on to the gateway, one connection each; streams are passed back as they come."""

    def __init__(self, path: str, before: Callable[[], None]) -> None:
        """Call `before` ahead of each request, so that the gateway knows what this process knows."""
        self._path, self._before = path, before

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Ask the gateway, and return its response."""
        self._before()
        try:
            reader, writer = await asyncio.open_unix_connection(self._path, limit=HEAD_LIMIT_BYTES)
            try:
                writer.write(_head(request) + bytes(request.body))
                head = await reader.readuntil(b"\r\n\r\n")
            except BaseException:
                writer.close()
                raise
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise Unavailable("the gateway does not answer; try again shortly") from None
        status, headers = _read_head(head)
        kind = headers.get("content-type", "application/json")
        rest = {name: value for name, value in headers.items() if name not in OWN}
        length = headers.get("content-length")
        if length is None:
            if request.method == "HEAD":
                writer.close()  # nobody reads the stream
            return HttpResponse(
                status=status, content_type=kind, headers=rest, stream=_stream(reader, writer)
            )
        try:
            body = await reader.readexactly(int(length))
        except asyncio.IncompleteReadError:
            raise Unavailable("the gateway broke off its answer; try again shortly") from None
        finally:
            writer.close()
        return HttpResponse(status=status, body=body, content_type=kind, headers=rest)


async def _stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while part := await reader.read(PART_BYTES):
            yield part
    finally:
        writer.close()


def _head(request: HttpRequest) -> bytes:
    method = "GET" if request.method == "HEAD" else request.method  # the length of a body is that of GET
    lines = [f"{method} {quote(request.path, safe=PLAIN)} HTTP/1.1", "host: gateway", "connection: close"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name in PASSED_ON]
    if len(request.body):
        lines.append(f"content-length: {len(request.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [line.partition(":") for line in lines]
    return int(first.split(" ")[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


class GrpcForwarding:
    """Passes gRPC methods on to the gateway, with their messages as they are."""

    def __init__(self, path: str) -> None:
        self._channel = grpc.aio.insecure_channel(f"unix:{path}")

    @property
    def methods(self) -> dict[str, RawMethod]:
        """Each method by its name."""
        return {name: self._method(name) for name in METHODS}

    async def close(self) -> None:
        """Close the connection to the gateway."""
        await self._channel.close()

    def _method(self, name: str) -> RawMethod:
        ask = self._channel.unary_unary(f"/{SERVICE}/{name}")

        async def answer(raw: bytes, headers: Headers) -> bytes:
            kept = tuple(pair for pair in headers if pair[0] == "authorization")
            return bytes(await ask(raw, metadata=kept))

        return answer
