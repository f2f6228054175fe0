"""The roster: a small actor that numbers gateways, starts and drains servers, and decides how many run.

Requests do not pass through the roster. If its node dies, Ray makes it again from the same charter, and it
finds the servers by name. In the meantime, gateways keep using the servers they know.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError

from slimsched.serving.ray.messages import (
    LEAVE_LIMIT_S,
    Charter,
    Membership,
    actor_options,
    decode,
    encode,
    server_name,
)
from slimsched.serving.routers.autoscaler import Autoscaler, ReportedLoad, together

ROSTER_LOOK_S = 0.25
GATEWAY_LOST_S = 10.0
"""A gateway that has not reported for this long counts as gone."""

START_AGAIN_S = 5.0
"""Time between two starts of a server that ends before it is ready."""

SILENT_S = 3.0
"""How long a server that some gateway suspects may take to tell the roster that it lives."""

LINGER_S = 20.0
"""How long servers wait for a new gateway after losing the last one."""


class _Gateway:
    """What a gateway last reported."""

    def __init__(self) -> None:
        self.heard_s = monotonic()
        self.load = ReportedLoad()
        self.up: set[int] = set()


class Roster:
    """Keeps track of the cluster's gateways and servers."""

    def __init__(self, charter: bytes, namespace: str) -> None:
        self._charter = decode(charter, Charter)
        self._encoded = [encode(spec) for spec in self._charter.specs]
        self._namespace = namespace
        self._servers: dict[int, Any] = {}  # actor handles
        self._started_s: dict[int, float] = {}
        self._gateways: dict[int, _Gateway] = {}
        self._highest = 0
        self._alone_s = monotonic()  # when the last gateway was seen
        options = self._charter.autoscale
        self._autoscaler = Autoscaler(options) if options is not None else None
        self._began: asyncio.Task[None] | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self._looked_at: set[int] = set()  # servers that some gateway suspects

    async def join(self, servers: list[str]) -> Membership | str:
        """Give a gateway its number; return a string with the reason if it cannot join."""
        if servers != self._charter.names:
            return f"the cluster there has servers {', '.join(self._charter.names)}"
        await self._begin()
        self._highest += 1
        self._gateways[self._highest] = _Gateway()
        charter = self._charter
        return Membership(number=self._highest, epoch_s=charter.epoch_s, secret=charter.secret)

    async def report(
        self, gateway: int, load: ReportedLoad, up: list[int], ended: list[int], suspected: list[int]
    ) -> list[int]:
        """Take a gateway's report and return the servers that should run.

        `ended` are servers that Ray gave up, `suspected` those that did not answer the gateway.
        """
        await self._begin()
        self._highest = max(self._highest, gateway)
        known = self._gateways.setdefault(gateway, _Gateway())
        known.heard_s, known.load, known.up = monotonic(), load, set(up)
        for index in ended:
            if index in self._servers and monotonic() - self._started_s[index] > START_AGAIN_S:
                del self._servers[index]
                self._start(index)
        for index in self._servers.keys() & set(suspected) - self._looked_at:
            self._do(self._look_at(index))
        return sorted(self._servers)

    async def names(self) -> list[str]:
        """Return the names of all servers, running or not."""
        return self._charter.names

    async def start_server(self, name: str) -> None:
        """Start a server."""
        self._start(self._charter.names.index(name))

    async def drain_server(self, name: str) -> None:
        """Let a server finish its work, then stop it; return when it is gone."""
        await self._drain(self._charter.names.index(name))

    async def servers(self) -> dict[str, bool]:
        """Return the servers that should run, and whether any gateway sees them up."""
        up = self._up()
        return {self._charter.names[index]: index in up for index in sorted(self._servers)}

    async def leave(self, gateway: int) -> bool:
        """Remove a gateway; if it was the last, stop all servers and return True."""
        self._gateways.pop(gateway, None)
        if self._gateways:
            return False
        self._stop_all()
        return True

    async def _begin(self) -> None:
        if self._began is None:
            self._began = asyncio.create_task(self._look_forever())
            await self._find_servers()

    async def _find_servers(self) -> None:
        """Start the first servers; after a restart, find running servers and the highest gateway number."""
        named = ray.util.list_named_actors(all_namespaces=True)
        there = {actor["name"] for actor in named if actor["namespace"] == self._namespace}
        for index, name in enumerate(self._charter.names):
            if server_name(name) in there:
                self._servers[index] = ray.get_actor(server_name(name), self._namespace)
                self._started_s[index] = monotonic()
        for server in self._servers.values():
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(1.0):
                    self._highest = max(self._highest, await server.highest_gateway.remote())
        for index in range(self._charter.at_first):
            self._start(index)

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(ROSTER_LOOK_S)
            now_s = monotonic()
            for number, gateway in list(self._gateways.items()):
                if now_s - gateway.heard_s > GATEWAY_LOST_S:
                    del self._gateways[number]
            if self._gateways:
                self._alone_s = now_s
                self._scale(now_s)
            elif now_s - self._alone_s > LINGER_S:
                self._stop_all()
                ray.kill(ray.get_runtime_context().current_actor)

    def _scale(self, now_s: float) -> None:
        if self._autoscaler is None:
            return
        load = together([gateway.load for gateway in self._gateways.values()])
        running = len(self._servers)
        step = self._autoscaler.decide(load, wanted=running, up=len(self._up()), now_s=now_s)
        if step is None:
            return
        logging.getLogger("slim.roster").warning("%d servers from now on: %s", step.servers, step.reason)
        if step.servers > running:
            down = [index for index in range(len(self._charter.specs)) if index not in self._servers]
            for index in down[: step.servers - running]:
                self._start(index)
        else:
            for index in sorted(self._servers)[step.servers :]:
                self._do(self._drain(index))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _look_at(self, index: int) -> None:
        """Ask a suspected server whether it lives; if it does not say so, let Ray start it again."""
        server = self._servers[index]
        self._looked_at.add(index)
        try:
            async with asyncio.timeout(SILENT_S):
                await server.highest_gateway.remote()
        except TimeoutError:
            name = self._charter.names[index]
            logging.getLogger("slim.roster").warning("%s does not answer: it is started again", name)
            ray.kill(server, no_restart=False)  # Ray ends a stopped process after about 5 s
        except RayError:
            pass  # it has ended, and Ray starts it again
        finally:
            self._looked_at.discard(index)

    def _up(self) -> set[int]:
        seen = set().union(*(gateway.up for gateway in self._gateways.values()))
        return seen & self._servers.keys()

    def _start(self, index: int) -> None:
        if index in self._servers:
            return
        from slimsched.serving.ray.server import ServerActor  # it needs torch, which gateways need not load

        charter = self._charter
        spec = charter.specs[index]
        self._started_s[index] = monotonic()
        self._servers[index] = (
            ray.remote(ServerActor)
            .options(
                name=server_name(spec.name),
                namespace=self._namespace,
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                **actor_options(spec.host),
            )
            .remote(self._encoded[index], charter.epoch_s, charter.secret)
        )

    async def _drain(self, index: int) -> None:
        was_up = index in self._up()
        server = self._servers.pop(index, None)
        if server is None:
            return
        if was_up:
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(LEAVE_LIMIT_S + 5.0):
                    await server.leave.remote()
        ray.kill(server)

    def _stop_all(self) -> None:
        for server in self._servers.values():
            ray.kill(server)
        self._servers.clear()
