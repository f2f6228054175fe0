"""A server as a Ray actor: the same live server as in the local engine, behind its own door."""

import asyncio
import os
from time import monotonic, time

import msgspec
import ray

from slimsched.serving.execution.ray.charter import decode
from slimsched.serving.execution.ray.door import Door
from slimsched.serving.execution.ray.peers import TcpPeers
from slimsched.serving.live.sensors import open_meter, open_sensor
from slimsched.serving.live.server import LiveServer, make_executor, read_models, touch, warm_up
from slimsched.serving.live.wire import Drain, ServerSpec

LEAVE_LIMIT_S = 30.0
LOOK_S, LAST_WORDS_S = 0.01, 0.05


class ServerActor:
    """Warms up when made, opens its door when first asked for its address, drains when told to leave.

    If its node is gone, Ray makes it again with the same arguments on a node that has room.
    """

    def __init__(self, spec: bytes, epoch_s: float, secret: str) -> None:
        self._spec = _as_here(decode(spec, ServerSpec), epoch_s)
        self._secret = secret
        if hasattr(os, "sched_setaffinity") and (
            cores := os.sched_getaffinity(0) & set(self._spec.host.cores)
        ):
            os.sched_setaffinity(0, cores)
        self._models, self._profile = read_models(self._spec)
        self._executor = make_executor(self._spec, self._models)
        warm_up(self._executor, self._models, self._spec.scheduler.batch_limit)
        self._door = Door(self._spec.index, secret)
        self._opened: asyncio.Task[str] | None = None

    async def address(self) -> str:
        """Return the address of the door; open it the first time."""
        if self._opened is None:
            self._opened = asyncio.create_task(self._open())
        return await asyncio.shield(self._opened)

    async def highest_gateway(self) -> int:
        """Return the highest gateway number that has connected."""
        return self._door.highest_gateway

    async def leave(self) -> bool:
        """Accept no more work and finish the rest; return False if that took too long."""
        await self.address()
        self._door.say_leaving()
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                while not self._door.is_quiet:
                    await asyncio.sleep(LOOK_S)
                self._server.receive(Drain())
                await self._server.drained.wait()
                while self._server.kept():
                    await asyncio.sleep(LOOK_S)
                await asyncio.sleep(LAST_WORDS_S)
        except TimeoutError:
            return False
        return True

    async def _open(self) -> str:
        spec = self._spec
        meter = open_meter(spec.host.kind, self._profile.idle_w, spec.host.gpu)
        peers = TcpPeers(self._secret, spec.host.kind)
        self._server = LiveServer(
            spec,
            self._models,
            self._profile,
            self._executor,
            meter,
            peers,
            self._door.tell,
            sensor=open_sensor(spec.sensors, spec.host),
        )
        await self._server.start()
        touch(self._executor, self._models, self._server.scheduler.fleet.instances())
        host = ray.util.get_node_ip_address()
        port = await self._door.open(self._server, host)
        self._sampling = asyncio.create_task(self._server.sample_forever())
        return f"{host}:{port}"


def _as_here(spec: ServerSpec, epoch_s: float) -> ServerSpec:
    """Return the spec with this node's clock and the GPU that Ray assigned."""
    host = spec.host
    if host.kind == "cuda" and (given := ray.get_gpu_ids()):
        host = msgspec.structs.replace(host, gpu=int(given[0]))
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(host.mps_percentage)
    zero_s = monotonic() - (time() - epoch_s)
    return msgspec.structs.replace(spec, host=host, clock_zero_s=zero_s)
