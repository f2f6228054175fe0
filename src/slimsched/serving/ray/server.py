"""A server as a Ray actor: the same live server as in the local engine, at a TCP socket of its own.

At the one port gateways send blocks and other servers fetch activations. A batch may hold blocks of several
gateways; each is told of its own.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from time import monotonic, time

import torch
from msgspec.structs import replace
from torch import Tensor

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import ids_of
from slimsched.serving.gateway.messages import BlockDropped, Forget, InputLost, TelemetryReceived
from slimsched.serving.live import wire
from slimsched.serving.live.peers import PeerLinks, dense, facts_of, view_of
from slimsched.serving.live.sensors import open_meter, open_sensor
from slimsched.serving.live.server import (
    LiveServer,
    keep_to_cores,
    make_executor,
    read_models,
    touch,
    warm_up,
)
from slimsched.serving.ray.messages import LEAVE_LIMIT_S, Handed, Hello, Leaving, ToActor, decode, gateway_of

# -- Moves activations from server to server over TCP, on the same node or between nodes.

FETCH_LIMIT_S = 10.0
"""A server that has not handed over activations after this time counts as gone: requests start again."""


class TcpPeers(PeerLinks):
    """Fetches from other servers' sockets ("host:port")."""

    def __init__(self, secret: str, device: str) -> None:
        super().__init__(Handed)
        self._secret, self._device = secret, device

    async def connect(self, peer: str, make: Callable[[], wire.FrameConnection]) -> wire.FrameConnection:
        """Open a connection and say hello; raise OSError if the server is gone or takes too long."""
        host, _, port = peer.rpartition(":")
        async with asyncio.timeout(FETCH_LIMIT_S):
            _, connection = await asyncio.get_running_loop().create_connection(make, host, int(port))
        connection.send(Hello(secret=self._secret))
        return connection

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations over TCP."""
        handed: Handed | None = await self.ask(peer, wire.Fetch(requests=list(requests)), FETCH_LIMIT_S)
        rows = None if handed is None else unpack(handed)
        return rows if rows is None else tuple(tensor.to(self._device) for tensor in rows)


# -- Splits the result of a batch that holds blocks of several gateways.


def split_by_gateway(done: wire.BatchDone) -> list[tuple[int, wire.BatchDone]]:
    """Split a result by gateway: each gets its blocks, its output rows and its share of the energy."""
    finished = done.finished
    gateways = {gateway_of(block.id) for block in finished.blocks}
    if len(gateways) == 1:
        return [(gateways.pop(), done)]
    rows, after = [], 0
    for block, queue_s in zip(finished.blocks, finished.queue_s, strict=True):
        start, after = after, after + block.examples
        rows.append((block, queue_s, start, after))
    sized = [(raw, len(raw) // after) for raw in done.outputs]
    parts = []
    for gateway in sorted(gateways):
        own = [one for one in rows if gateway_of(one[0].id) == gateway]
        share = sum(block.examples for block, *_ in own) / after
        part = replace(
            finished,
            blocks=tuple(block for block, *_ in own),
            queue_s=tuple(queue_s for _, queue_s, *_ in own),
            energy_j=finished.energy_j * share,
        )
        outputs = [b"".join([raw[start * n : end * n] for *_, start, end in own]) for raw, n in sized]
        parts.append((gateway, wire.BatchDone(finished=part, outputs=outputs)))
    return parts


LOOK_S = 0.005
HELLO_LIMIT_BYTES = 4096
HELLO_LIMIT_S = 10.0
STRANGERS = 64
"""How many callers may be connected without having said hello."""


class ActorSocket:
    """Admits callers that know the secret, and sends each gateway the news of its own blocks.

    When a gateway is gone, its activations are dropped. Its queued blocks still run, but nobody is told.
    """

    def __init__(self, index: int, secret: str) -> None:
        self._index, self._secret = index, secret
        self._gateways: dict[int, wire.FrameConnection] = {}
        self._number: dict[wire.FrameConnection, int] = {}  # gateway number of each connection; 0: a server
        self._strangers: dict[wire.FrameConnection, asyncio.TimerHandle] = {}  # have not said hello yet
        self._agreed: set[int] = set()  # gateways that agreed to send nothing more
        self.highest_gateway = 0

    async def open(self, server: LiveServer, host: str) -> int:
        """Listen on a free port of this address and return the port."""
        self._server = server
        self._socket = await asyncio.get_running_loop().create_server(self._called, host, 0)
        return int(self._socket.sockets[0].getsockname()[1])

    def tell(self, message: wire.ToGateway) -> None:
        """Send a message to the gateways it concerns."""
        match message:
            case wire.BatchDone():
                for gateway, part in split_by_gateway(message):
                    made = [number for block in part.finished.blocks for number in ids_of(block.requests)]
                    self._tell(gateway, part, made)
            case BlockDropped(block=block) | InputLost(block=block):
                self._tell(gateway_of(block.id), message, [])
            case TelemetryReceived() | wire.Ready():
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

    def _tell(self, gateway: int, message: wire.ToGateway, made: list[int]) -> None:
        connection = self._gateways.get(gateway)
        if connection is not None:
            connection.send(message)
        else:
            self._server.receive(Forget(server=self._index, requests=tuple(made)))

    def _called(self) -> wire.FrameConnection:
        """Open a connection for a caller, who must say hello soon, and nothing long before."""
        stranger = wire.FrameConnection(ToActor, self._received, self._lost, HELLO_LIMIT_BYTES)
        wait_s = HELLO_LIMIT_S if len(self._strangers) < STRANGERS else LOOK_S
        self._strangers[stranger] = asyncio.get_running_loop().call_later(wait_s, stranger.abort)
        return stranger

    def _received(self, connection: wire.FrameConnection, message: ToActor) -> None:
        if connection not in self._number:
            self._greet(connection, message)
            return
        match message:
            case wire.Fetch(requests=requests):
                connection.send(pack(self._server.surrender(requests)))
            case wire.Drain():
                self._agreed.add(self._number[connection])
            case wire.Ping():
                connection.send(wire.Pong())
            case Hello():
                pass
            case _:
                self._server.receive(message)

    def _greet(self, connection: wire.FrameConnection, message: ToActor) -> None:
        """Admit a caller that knows the secret; hang up on others."""
        if not isinstance(message, Hello) or not wire.is_same(message.secret, self._secret):
            connection.abort()
            return
        self._strangers.pop(connection).cancel()
        connection.limit_bytes = wire.FRAME_LIMIT_BYTES
        self._number[connection] = message.gateway
        if message.gateway:
            self.highest_gateway = max(self.highest_gateway, message.gateway)
            self._gateways.pop(message.gateway, None)
            self._admit(connection, message.gateway)

    def _admit(self, connection: wire.FrameConnection, gateway: int) -> None:
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
        connection.send(wire.Ready(index=self._index, pid=os.getpid()))

    def _lost(self, connection: wire.FrameConnection) -> None:
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
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data)


# -- The actor.

LEAVE_LOOK_S, LAST_WORDS_S = 0.01, 0.05


class ServerActor:
    """Warms up when made, listens when first asked for its address, drains when told to leave.

    If its node is gone, Ray makes it again with the same arguments on a node that has room.
    """

    def __init__(self, spec: bytes, epoch_s: float, secret: str) -> None:
        self._spec, self._secret = _as_here(decode(spec, wire.ServerSpec)), secret
        self._zero_s = monotonic() - (time() - epoch_s)  # on this node's clock
        keep_to_cores(self._spec.host)
        self._models, self._profile = read_models(self._spec)
        self._executor = make_executor(self._spec, self._models)
        warm_up(self._executor, self._models, self._spec.scheduler.batch_limit)
        self._socket = ActorSocket(self._spec.index, secret)
        self._opened: asyncio.Task[str] | None = None

    async def address(self) -> str:
        """Return the address of the socket; open it the first time."""
        if self._opened is None:
            self._opened = asyncio.create_task(self._open())
        return await asyncio.shield(self._opened)

    async def highest_gateway(self) -> int:
        """Return the highest gateway number that has connected."""
        return self._socket.highest_gateway

    async def leave(self) -> bool:
        """Accept no more work and finish the rest; return False if that took too long."""
        await self.address()
        self._socket.say_leaving()
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                while not self._socket.is_quiet:
                    await asyncio.sleep(LEAVE_LOOK_S)
                self._server.receive(wire.Drain())
                await self._server.drained.wait()
                while self._server.kept():
                    await asyncio.sleep(LEAVE_LOOK_S)
                await asyncio.sleep(LAST_WORDS_S)
        except TimeoutError:
            return False
        return True

    async def _open(self) -> str:
        import ray

        spec, profile = self._spec, self._profile
        meter = open_meter(spec.host.kind, profile.idle_w, spec.host.gpu, by=profile.energy_source)
        peers = TcpPeers(self._secret, spec.host.kind)
        self._server = LiveServer(
            spec,
            self._models,
            self._profile,
            self._executor,
            meter,
            peers,
            self._socket.tell,
            clock_zero_s=self._zero_s,
            sensor=open_sensor(spec.sensors, spec.host),
        )
        await self._server.start()
        touch(self._executor, self._models, self._server.scheduler.instances.all())
        host = ray.util.get_node_ip_address()
        port = await self._socket.open(self._server, host)
        self._sampling = asyncio.create_task(self._server.sample_forever())
        return f"{host}:{port}"


def _as_here(spec: wire.ServerSpec) -> wire.ServerSpec:
    """Return the spec with the GPU that Ray assigned on this node."""
    import ray

    host = spec.host
    if host.kind == "cuda" and (given := ray.get_gpu_ids()):
        host = replace(host, gpu=int(given[0]))
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(host.mps_percentage)
    return replace(spec, host=host)
