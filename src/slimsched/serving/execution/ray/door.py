"""A server's door: one TCP port where gateways send blocks and other servers fetch activations."""

import asyncio
import hmac
import os

from slimsched.serving.domain.request import ids_of
from slimsched.serving.execution.ray.batch_split import split_by_gateway
from slimsched.serving.execution.ray.greeting import Hello, Leaving, ToDoor, gateway_of, pack
from slimsched.serving.gateway.messages import BlockDropped, Forget, InputLost, TelemetryReceived
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
