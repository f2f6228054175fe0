"""One end of a connection that carries whole messages: length-prefixed MessagePack frames."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from slimsched.core.config import SlimError

FRAME_LIMIT_BYTES = 256 * 2**20
HEAD_BYTES = 4
LARGE_BYTES = 2**16
"""From this size on, a second write costs less than a copy."""

_encoder = msgspec.msgpack.Encoder()


class FrameError(SlimError):
    """A peer sent data that is not a valid frame."""


class FrameConnection(asyncio.Protocol):
    """Delivers each message as soon as it is complete, without a task or a stream in between.

    A peer that sends an invalid frame is disconnected.
    """

    def __init__(
        self,
        kind: Any,
        received: "Callable[[FrameConnection, Any], None]",
        lost: "Callable[[FrameConnection], None]",
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._received, self._lost = received, lost
        self._buffer = bytearray()
        self._spoke = False

    def spoke_since(self) -> bool:
        """Whether the peer has sent anything since the last call."""
        spoke, self._spoke = self._spoke, False
        return spoke

    def send(self, message: Struct) -> None:
        """Send without waiting; what is sent to a connection that is closing is lost."""
        if self._transport.is_closing():
            return
        body = _encoder.encode(message)
        head = len(body).to_bytes(HEAD_BYTES, "little")
        if len(body) < LARGE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def close(self) -> None:
        """Send all pending data, then close."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once, for a peer that does not answer."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the connection opens."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(0)  # uvloop then writes at once, not at the end of its round

    def connection_lost(self, error: Exception | None) -> None:
        """Called by asyncio when either side closed the connection."""
        self._lost(self)

    def data_received(self, data: bytes | bytearray) -> None:
        """Deliver every message that is now complete."""
        self._spoke = True
        if self._buffer:
            self._buffer += data
            if not self._is_whole():
                return
            data, self._buffer = self._buffer, bytearray()  # handed over, not copied
        start, end = 0, len(data)
        while end - start >= HEAD_BYTES:
            size = int.from_bytes(data[start : start + HEAD_BYTES], "little")
            if size > self.limit_bytes:
                self._transport.abort()
                raise FrameError(f"a frame of {size} bytes was announced; {self.limit_bytes} are the limit")
            after = start + HEAD_BYTES + size
            if after > end:
                break
            self._received(self, self._decoder.decode(memoryview(data)[start + HEAD_BYTES : after]))
            start = after
        self._buffer += data[start:]

    def _is_whole(self) -> bool:
        """Whether at least one message is complete."""
        if len(self._buffer) < HEAD_BYTES:
            return False
        size = int.from_bytes(self._buffer[:HEAD_BYTES], "little")
        return size > self.limit_bytes or len(self._buffer) >= HEAD_BYTES + size
