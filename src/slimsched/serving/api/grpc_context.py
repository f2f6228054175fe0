"""A gRPC call that our own thread reads: the few methods of the library's context that the server uses."""

import asyncio
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import grpc

from slimsched.serving.api.refusal import BadRequest, NotOffered, RefusalError, TooLarge, Unavailable

if TYPE_CHECKING:
    from slimsched.serving.api._express_grpc import Express

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its size."""

OPENS, MESSAGE, ENDS, TOO_LARGE, FULL, SENT = 1, 2, 4, 8, 16, 32
"""What the thread says about a call, as `express_grpc_call.hpp` numbers it."""

UNESCAPED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

Metadata = tuple[tuple[str, str], ...]


class CallEndedError(Exception):
    """The call has its status, so there is nothing left to do for it."""


class GrpcContext:
    """One call, of which the thread says what has come."""

    def __init__(
        self, line: "Express", token: int, head: bytes, longest_bytes: int, address: str = ""
    ) -> None:
        self._address = address
        self._line, self._token, self._longest_bytes = line, token, longest_bytes
        self._metadata = _read_head(head)
        self.path = dict(self._metadata).get(":path", "")
        self._arrived: deque[bytes | RefusalError] = deque()
        self._is_wanted, self._has_ended, self._is_over = True, False, False
        self._progress: asyncio.Future[None] | None = None
        self._sent: asyncio.Future[None] | None = None
        self._trailers: tuple[tuple[str, str | bytes], ...] = ()

    # -- what the thread says

    def received(self, kind: int, message: bytes) -> None:
        """Take what has come, or what has happened."""
        if kind & MESSAGE:
            self._arrived.append(message)
        if kind & TOO_LARGE:
            why = f"the message has more than {self._longest_bytes} bytes; send fewer images per request"
            self._arrived.append(TooLarge(why))
        if kind & FULL:
            self._arrived.append(Unavailable("too many bytes of requests are under way; try again"))
        self._has_ended |= bool(kind & ENDS)
        if kind & (MESSAGE | ENDS | TOO_LARGE | FULL):
            self._is_wanted = False
            _wake(self._progress)
        if kind & SENT:
            _wake(self._sent)

    # -- what the server asks for, as of the library's context

    def invocation_metadata(self) -> Metadata:
        """Return the headers on which an answer can depend."""
        return self._metadata

    def peer(self) -> str:
        """Return who calls; the thread does not know the port."""
        return f"{'ipv6' if ':' in self._address else 'ipv4'}:{self._address}:0"

    def arrived(self) -> bytes | None:
        """Return the next message if it has come."""
        if not self._arrived:
            return None
        message = self._arrived.popleft()
        if isinstance(message, RefusalError):
            raise message
        return self._unpacked(message)

    async def read(self) -> Any:
        """Return the next message once it has come, or grpc.aio.EOF after the last one."""
        while (message := self.arrived()) is None:
            if self._has_ended:
                return grpc.aio.EOF
            if not self._is_wanted:
                self._is_wanted = True
                self._line.read(self._token)
            self._progress = asyncio.get_running_loop().create_future()
            await self._progress
        return message

    async def write(self, raw: bytes) -> None:
        """Send one of several messages; return when the client has room for the next."""
        self._sent = asyncio.get_running_loop().create_future()
        self._line.write(self._token, framed(raw))
        await self._sent

    def set_trailing_metadata(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        """Send these behind the status."""
        self._trailers = tuple(pairs)

    async def abort(self, code: grpc.StatusCode, why: str = "") -> None:
        """End the call with a status other than OK."""
        self.end(written_status(code, why, self._trailers))
        raise CallEndedError

    # -- the end

    def end(self, answer: bytes) -> None:
        """End the call with an answer or a status."""
        if not self._is_over:
            self._is_over = True
            self._line.answer([self._token], [answer])

    def cancel(self) -> None:
        """End the call without a word."""
        if not self._is_over:
            self._is_over = True
            self._line.cancel(self._token)

    def _unpacked(self, message: bytes) -> bytes:
        """Return a message without its prefix; expand one that is compressed."""
        if not message[0]:
            return message[PREFIX_BYTES:]
        encoding = dict(self._metadata).get("grpc-encoding", "identity")
        if message[0] != 1 or encoding not in ("gzip", "deflate"):
            raise NotOffered(
                f"messages in encoding '{encoding}' are not understood; send gzip, or plain ones"
            )
        reader = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == "gzip" else 0))
        try:
            raw = reader.decompress(message[PREFIX_BYTES:], self._longest_bytes + 1)
        except zlib.error as error:
            raise BadRequest(f"the message is not {encoding}: {error}") from None
        if len(raw) > self._longest_bytes:
            raise TooLarge(f"the message has more than {self._longest_bytes} bytes; send fewer images")
        return raw


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _read_head(head: bytes) -> Metadata:
    """Read headers as the thread keeps them."""
    lines = head.decode("latin-1").rstrip("\n").split("\n")
    pairs = [line.partition("\0") for line in lines]
    return tuple([(name, value) for name, _, value in pairs])


def written_head(metadata: Metadata) -> bytes:
    """Write headers as the thread keeps them."""
    return ("".join([f"{name}\0{value}\n" for name, value in metadata]) + "\n").encode("latin-1")


def framed(raw: bytes) -> bytes:
    """Return a message as it travels."""
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def written_status(code: grpc.StatusCode, why: str, more: Iterable[tuple[str, str | bytes]] = ()) -> bytes:
    """Write a status for the thread: trailers, with a zero behind each name and each value."""
    pairs = [("grpc-status", str(code.value[0])), ("grpc-message", quote(why, safe=UNESCAPED))]
    pairs += [(name, value) for name, value in more if isinstance(value, str)]
    return b"\1" + "".join([f"{name}\0{value}\0" for name, value in pairs]).encode("latin-1", "replace")


FINE = written_status(grpc.StatusCode.OK, "")
"""The status of a call whose answer has been sent."""
