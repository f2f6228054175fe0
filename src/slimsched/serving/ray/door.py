"""A server's door: one TCP port where gateways send blocks and other servers fetch activations.

A batch may hold blocks of several gateways; each is told of its own.
"""

import asyncio
import hmac
import os
from collections import deque
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import Block, ids_of
from slimsched.serving.gateway.messages import BlockDropped, Forget, InputLost, TelemetryReceived
from slimsched.serving.live.peers import dense, facts_of, view_of
from slimsched.serving.live.server import LiveServer
from slimsched.serving.live.wire import (
    FRAME_LIMIT_BYTES,
    BatchDone,
    Drain,
    Fetch,
    FrameConnection,
    Ping,
    Pong,
    Ready,
    ToGateway,
)
from slimsched.serving.ray.messages import Handed, Hello, Leaving, ToDoor, gateway_of

# -- Moves activations from server to server over TCP, on the same node or between nodes.

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


# -- Splits the result of a batch that holds blocks of several gateways.


def split_by_gateway(done: BatchDone) -> list[tuple[int, BatchDone]]:
    """Split a result by gateway: each gets its blocks, its output rows and its share of the energy."""
    finished = done.finished
    gateways = {gateway_of(block.id) for block in finished.blocks}
    if len(gateways) == 1:
        return [(gateways.pop(), done)]
    examples = finished.examples
    row_bytes = [len(raw) // examples for raw in done.outputs]
    parts = {gateway: _Part(len(row_bytes)) for gateway in sorted(gateways)}
    row = 0
    for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
        part, count = parts[gateway_of(block.id)], block.examples
        part.blocks.append(block)
        part.queue_s.append(queue_s)
        for rows, raw, size in zip(part.outputs, done.outputs, row_bytes, strict=True):
            rows.append(raw[row * size : (row + count) * size])
        part.examples += count
        row += count
    return [
        (
            gateway,
            BatchDone(
                finished=replace(
                    finished,
                    blocks=tuple(part.blocks),
                    queue_s=tuple(part.queue_s),
                    energy_j=finished.energy_j * part.examples / examples,
                ),
                outputs=[b"".join(rows) for rows in part.outputs],
            ),
        )
        for gateway, part in parts.items()
    ]


class _Part:
    def __init__(self, outputs: int) -> None:
        self.blocks: list[Block] = []
        self.queue_s: list[float] = []
        self.outputs: list[list[bytes]] = [[] for _ in range(outputs)]
        self.examples = 0


LOOK_S = 0.005
HELLO_LIMIT_BYTES = 4096
HELLO_LIMIT_S = 10.0
STRANGERS = 64
"""How many callers may be connected without having said hello."""


class Door:
    """Admits callers that know the secret, and sends each gateway the news of its own blocks.

    When a gateway is gone, the door drops its activations. Its queued blocks still run, but nobody is told.
    """

    def __init__(self, index: int, secret: str) -> None:
        self._index, self._secret = index, secret
        self._gateways: dict[int, FrameConnection] = {}
        self._number: dict[FrameConnection, int] = {}  # gateway number of each connection; 0: a server
        self._strangers: dict[FrameConnection, asyncio.TimerHandle] = {}  # have not said hello yet
        self._agreed: set[int] = set()  # gateways that agreed to send nothing more
        self.highest_gateway = 0

    async def open(self, server: LiveServer, host: str) -> int:
        """Listen on a free port of this address and return the port."""
        self._server = server
        self._socket = await asyncio.get_running_loop().create_server(self._called, host, 0)
        return int(self._socket.sockets[0].getsockname()[1])

    def tell(self, message: ToGateway) -> None:
        """Send a message to the gateways it concerns."""
        match message:
            case BatchDone():
                for gateway, part in split_by_gateway(message):
                    made = [number for block in part.finished.blocks for number in ids_of(block.requests)]
                    self._tell(gateway, part, made)
            case BlockDropped(block=block) | InputLost(block=block):
                self._tell(gateway_of(block.id), message, [])
            case TelemetryReceived() | Ready():
                for connection in self._gateways.values():
                    connection.send(message)

    def say_leaving(self) -> None:
        """Ask every gateway to send nothing more."""
        for connection in self._gateways.values():
            connection.send(Leaving())

    @property
    def is_quiet(self) -> bool:
        """Whether all gateways agreed to send nothing more."""
        return self._agreed >= self._gateways.keys()

    def _tell(self, gateway: int, message: ToGateway, made: list[int]) -> None:
        connection = self._gateways.get(gateway)
        if connection is not None:
            connection.send(message)
        else:
            self._server.receive(Forget(server=self._index, requests=tuple(made)))

    def _called(self) -> FrameConnection:
        """Open a connection for a caller, who must say hello soon, and nothing long before."""
        stranger = FrameConnection(ToDoor, self._received, self._lost, HELLO_LIMIT_BYTES)
        wait_s = HELLO_LIMIT_S if len(self._strangers) < STRANGERS else LOOK_S
        self._strangers[stranger] = asyncio.get_running_loop().call_later(wait_s, stranger.abort)
        return stranger

    def _received(self, connection: FrameConnection, message: ToDoor) -> None:
        if connection not in self._number:
            self._greet(connection, message)
            return
        match message:
            case Fetch(requests=requests):
                connection.send(pack(self._server.surrender(requests)))
            case Drain():
                self._agreed.add(self._number[connection])
            case Ping():
                connection.send(Pong())
            case Hello():
                pass
            case _:
                self._server.receive(message)

    def _greet(self, connection: FrameConnection, message: ToDoor) -> None:
        """Admit a caller that knows the secret; hang up on others."""
        if not isinstance(message, Hello) or not hmac.compare_digest(
            message.secret.encode(), self._secret.encode()
        ):
            connection.abort()
            return
        self._strangers.pop(connection).cancel()
        connection.limit_bytes = FRAME_LIMIT_BYTES
        self._number[connection] = message.gateway
        if message.gateway:
            self.highest_gateway = max(self.highest_gateway, message.gateway)
            self._gateways.pop(message.gateway, None)
            self._admit(connection, message.gateway)

    def _admit(self, connection: FrameConnection, gateway: int) -> None:
        """Tell a gateway that this server is ready, once none of its earlier requests is left here.

        After losing its connection, a gateway starts its requests again elsewhere and may send them here too.
        """
        if self._number.get(connection) != gateway:
            return  # gone again
        if any(gateway_of(request) == gateway for request in self._server.under_way()):
            asyncio.get_running_loop().call_later(LOOK_S, self._admit, connection, gateway)
            return
        self._forget(gateway)
        self._gateways[gateway] = connection
        self._agreed.discard(gateway)
        connection.send(Ready(server=self._index, pid=os.getpid()))

    def _lost(self, connection: FrameConnection) -> None:
        if (waiting := self._strangers.pop(connection, None)) is not None:
            waiting.cancel()
        gateway = self._number.pop(connection, 0)
        if gateway and self._gateways.get(gateway) is connection:
            del self._gateways[gateway]
            self._forget(gateway)

    def _forget(self, gateway: int) -> None:
        left = [request for request in self._server.kept() if gateway_of(request) == gateway]
        self._server.receive(Forget(server=self._index, requests=tuple(left)))


def pack(rows: Tensors | None) -> Handed:
    """Turn activations into a message."""
    tensors = [dense(tensor.detach().cpu()) for tensor in rows or ()]
    return Handed(facts=[facts_of(tensor) for tensor in tensors], values=[_raw(tensor) for tensor in tensors])


def unpack(handed: Handed) -> Tensors | None:
    """Turn a message back into activations."""
    if not handed.facts:
        return None
    return tuple(
        view_of(facts, bytearray(values)) for facts, values in zip(handed.facts, handed.values, strict=True)
    )


def _raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a dense tensor in memory order."""
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data)
