"""One end of a connection that carries whole messages: length-prefixed MessagePack frames."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import SlimError

FRAME_LIMIT_BYTES = 256 * 2**20
HEAD_BYTES = 4
LARGE_BYTES = 2**16
"""From here on a second write costs less than a copy."""

_encoder = msgspec.msgpack.Encoder()


class FrameError(SlimError):
    """A peer sent something that is no frame of ours."""


class FrameConnection(asyncio.Protocol):
    """Tells what came as soon as it is whole, without a task or a stream in between.

    A peer that sends what is no frame of ours is cut off.
    """

    def __init__(
        self,
        kind: Any,
        received: "Callable[[FrameConnection, Any], None]",
        lost: "Callable[[FrameConnection], None]",
    ) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._received, self._lost = received, lost
        self._buffer = bytearray()

    def send(self, message: Struct) -> None:
        """Send without waiting."""
        body = _encoder.encode(message)
        head = len(body).to_bytes(HEAD_BYTES, "little")
        if len(body) < LARGE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Send what is on its way, then leave."""
        self._transport.close()

    def abort(self) -> None:
        """Leave at once; whoever is there does not answer."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # uvloop then writes at once, not at the end of its round

    def connection_lost(self, error: Exception | None) -> None:
        """Closed, by whomever."""
        self._lost(self)

    def data_received(self, data: bytes | bytearray) -> None:
        """Hand over every message that is whole now."""
        if self._buffer:
            self._buffer += data
            if not self._is_whole():
                return
            data, self._buffer = self._buffer, bytearray()  # handed over, not copied
        start, end = 0, len(data)
        while end - start >= HEAD_BYTES:
            size = int.from_bytes(data[start : start + HEAD_BYTES], "little")
            if size > FRAME_LIMIT_BYTES:
                self._transport.abort()
                raise FrameError(f"a frame of {size} bytes was announced; {FRAME_LIMIT_BYTES} are the limit")
            after = start + HEAD_BYTES + size
            if after > end:
                break
            self._received(self, self._decoder.decode(memoryview(data)[start + HEAD_BYTES : after]))
            start = after
        self._buffer += data[start:]

    def _is_whole(self) -> bool:
        """Whether at least one message is."""
        if len(self._buffer) < HEAD_BYTES:
            return False
        size = int.from_bytes(self._buffer[:HEAD_BYTES], "little")
        return size > FRAME_LIMIT_BYTES or len(self._buffer) >= HEAD_BYTES + size
