"""Activations between processes of one machine: asked for over a Unix socket, moved in shared memory."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from torch import Tensor

from slimsched.execution.live import shared_tensor
from slimsched.execution.live.messages import Fetch, Fetched, frame, read_frame

Surrender = Callable[[Sequence[int]], Tensor | None]


class UnixPeers:
    """Both ends: fetches from others, and hands over what others ask for."""

    def __init__(self, shared_prefix: str) -> None:
        self._prefix = shared_prefix

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensor | None:
        """Ask the server that listens at `peer`; None when it is gone or has not got them."""
        try:
            reader, writer = await asyncio.open_unix_connection(peer)
            writer.write(frame(Fetch(requests=list(requests))))
            found: Fetched = await read_frame(reader, msgspec.msgpack.Decoder(Fetched))
            writer.close()
            return shared_tensor.take(found.name, found.shape, found.dtype) if found.name else None
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def listen(self, path: str, surrender: Surrender) -> asyncio.Server:
        """Hand over at `path` what `surrender` gives up."""

        async def hand_over(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            decoder = msgspec.msgpack.Decoder(Fetch)
            try:
                while True:
                    wanted: Fetch = await read_frame(reader, decoder)
                    writer.write(frame(self._put(surrender(wanted.requests))))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return await asyncio.start_unix_server(hand_over, path)

    def _put(self, rows: Tensor | None) -> Fetched:
        if rows is None:
            return Fetched(name="", shape=(), dtype="")
        dtype = str(rows.dtype).removeprefix("torch.")
        return Fetched(name=shared_tensor.put(rows, self._prefix), shape=tuple(rows.shape), dtype=dtype)
