"""Moves activations from server to server over TCP, on the same node or between nodes."""

import asyncio
from collections import deque
from collections.abc import Sequence

from slimsched.models.elastic import Tensors
from slimsched.serving.execution.ray.greeting import Handed, Hello, unpack
from slimsched.serving.live.wire import Fetch, FrameConnection

FETCH_LIMIT_S = 10.0
"""A server that has not handed over activations after this time counts as gone: requests start again."""


class TcpPeers:
    """Fetches from other servers' doors ("host:port"), and keeps the connections open."""

    def __init__(self, secret: str, device: str) -> None:
        self._secret, self._device = secret, device
        self._to: dict[str, FrameConnection] = {}
        self._asked: dict[FrameConnection, deque[asyncio.Future[Handed]]] = {}

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations from the server at `peer`; None if it is gone or does not have them."""
        try:
            connection = self._to.get(peer) or await self._connect(peer)
        except OSError:
            return None
        answer: asyncio.Future[Handed] = asyncio.get_running_loop().create_future()
        self._asked[connection].append(answer)  # answers come in the order of the requests
        connection.send(Fetch(requests=list(requests)))
        silent = asyncio.get_running_loop().call_later(FETCH_LIMIT_S, connection.abort)
        rows = unpack(await answer)
        silent.cancel()
        return rows if rows is None else tuple(tensor.to(self._device) for tensor in rows)

    async def _connect(self, peer: str) -> FrameConnection:
        host, _, port = peer.rpartition(":")
        async with asyncio.timeout(FETCH_LIMIT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: FrameConnection(Handed, self._answered, self._lost), host, int(port)
            )
        self._asked[connection] = deque()
        connection.send(Hello(secret=self._secret))
        return self._to.setdefault(peer, connection)

    def _answered(self, connection: FrameConnection, handed: Handed) -> None:
        self._asked[connection].popleft().set_result(handed)

    def _lost(self, connection: FrameConnection) -> None:
        """Answer all open requests with nothing, because the server is gone."""
        self._to = {peer: one for peer, one in self._to.items() if one is not connection}
        for answer in self._asked.pop(connection, ()):
            answer.set_result(Handed())
