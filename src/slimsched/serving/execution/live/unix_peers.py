"""Moves activations between processes of one machine: requests use a Unix socket, data shared memory."""

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Sequence

from torch import Tensor

from slimsched.models.elastic import Tensors
from slimsched.serving.execution.live import shared_tensor
from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.messages import Fetch, Fetched, SharedTensor

Surrender = Callable[[Sequence[int]], Tensors | None]


class UnixPeers:
    """Both ends: fetches from other servers over open connections, and hands over what they request."""

    def __init__(self, shared_prefix: str, secret: str) -> None:
        self._prefix, self._secret = shared_prefix, secret
        self._to: dict[str, FrameConnection] = {}
        self._asked: dict[FrameConnection, deque[asyncio.Future[Fetched | None]]] = {}

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations from the server at `peer`; None if it is gone or does not have them."""
        try:
            connection = self._to.get(peer) or await self._connect(peer)
            answer: asyncio.Future[Fetched | None] = asyncio.get_running_loop().create_future()
            self._asked[connection].append(answer)  # answers come in the order of questions
            connection.send(Fetch(requests=list(requests), secret=self._secret))
            return self._taken(await answer)
        except OSError:
            return None

    async def listen(self, path: str, surrender: Surrender) -> asyncio.Server:
        """Listen at `path` and answer requests with what `surrender` returns."""

        def hand_over(connection: FrameConnection, wanted: Fetch) -> None:
            if not hmac.compare_digest(wanted.secret.encode(), self._secret.encode()):
                connection.abort()
                return
            rows = surrender(wanted.requests)
            connection.send(Fetched(tensors=[self._put(tensor) for tensor in rows or ()]))

        return await asyncio.get_running_loop().create_unix_server(
            lambda: FrameConnection(Fetch, hand_over, lambda _: None), path
        )

    async def _connect(self, peer: str) -> FrameConnection:
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: FrameConnection(Fetched, self._answered, self._lost), peer
        )
        self._asked[connection] = deque()
        return self._to.setdefault(peer, connection)

    def _answered(self, connection: FrameConnection, found: Fetched) -> None:
        answer = self._asked[connection].popleft()
        if not answer.done():
            answer.set_result(found)

    def _lost(self, connection: FrameConnection) -> None:
        """Forget a lost server; a new server at the same address gets a new connection."""
        self._to = {peer: one for peer, one in self._to.items() if one is not connection}
        for answer in self._asked.pop(connection, ()):
            if not answer.done():
                answer.set_result(None)

    def _taken(self, fetched: Fetched | None) -> Tensors | None:
        tensors = [self._take(one) for one in fetched.tensors] if fetched is not None else []
        whole = [tensor for tensor in tensors if tensor is not None]
        return tuple(whole) if whole and len(whole) == len(tensors) else None

    def _put(self, tensor: Tensor) -> SharedTensor:
        name, facts = shared_tensor.put(tensor, self._prefix)
        return SharedTensor(name=name, facts=facts)

    def _take(self, shared: SharedTensor) -> Tensor | None:
        return shared_tensor.take(shared.name, shared.facts) if shared.name and shared.facts else None
