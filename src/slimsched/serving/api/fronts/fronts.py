"""The front processes of a gateway: how many there are, what each is told, and the calls that it passes on.

A front reads requests and writes answers (`front.py`); one that dies costs its own clients their connections,
and nobody else anything. `live/processes.py` supervises them.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from slimsched.serving.api.fronts.bundles import (
    Calls,
    FromFront,
    FrontListens,
    FrontSession,
    Regions,
    RegionsKnown,
)
from slimsched.serving.api.fronts.front import FrontSpec
from slimsched.serving.api.service import Counted, InferenceService
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.processes import Supervisor
from slimsched.serving.live.wire import Drain, FrameConnection
from slimsched.serving.options import Listening

FRONT = "slimsched.serving.api.fronts.front"
START_LIMIT_S = 60.0
"""How long a front may take until it listens, beside its waits for a core."""

STOP_LIMIT_S = 2.0


class Fronts(Supervisor):
    """Runs front processes, and serves the calls of each while it lives."""

    def __init__(
        self, service: InferenceService, cluster: LiveCluster, listening: Listening, fronts: int
    ) -> None:
        self._service, self._cluster, self._listening, self._fronts = service, cluster, listening, fronts
        super().__init__(
            "front",
            [str(front) for front in range(fronts)],
            module=FRONT,
            messages=FromFront,
            start_limit_s=START_LIMIT_S,
            log=logging.getLogger("slim.fronts"),
        )
        folder = self.folder.path
        self.http_socket, self.grpc_socket = folder / "http", f"unix:{folder / 'grpc'}"
        self._sessions: dict[int, FrontSession] = {}
        self._change = 0  # of the regions of shared memory

    async def start(self) -> tuple[int, int]:
        """Start all fronts; return the HTTP and the gRPC port once they listen."""
        given = self._listening
        http, grpc = [_free_port(given.host, port) for port in (given.http_port, given.grpc_port)]
        self._listening = replace(given, http_port=http, grpc_port=grpc)
        try:
            await self.start_first(range(self._fronts))
        except BaseException:
            self.end()
            raise
        return http, grpc

    async def stop(self) -> None:
        """Let the fronts give their last answers, then end them, in a limited time."""
        await self.stop_all(Drain(), self._service.limits.drain_s + STOP_LIMIT_S)

    def introduce(self) -> None:
        """Tell all fronts which models there are."""
        for session in self._sessions.values():
            session.introduce(self._service.limits, self._fronts)

    async def announce(self) -> None:
        """Tell all fronts which regions of shared memory there are, and wait until they know."""
        self._change += 1
        shares = [self._share(session) for session in self._sessions.values()]
        if shares:
            await asyncio.wait(shares)

    def _share(self, session: FrontSession) -> "asyncio.Future[None]":
        return session.share(Regions(change=self._change, entries=self._service.regions.entries))

    def process_of(self, child: int, life: int) -> tuple[bytes, Mapping[str, str]]:
        """Return what a front's process must know; its environment is this one's."""
        folder, arena = self.folder.path, self._cluster.arena
        spec = FrontSpec(
            index=child,
            life=life,
            secret=self.secret,
            calls_socket=self.socket,
            http_socket=str(folder / "http"),
            grpc_socket=str(folder / "grpc"),
            arena="" if arena is None else str(arena.path),
            fronts=self._fronts,
            shared_memory=self._service.memory.is_allowed,
            listening=self._listening,
        )
        return msgspec.json.encode(spec, enc_hook=str), {}

    def joined(self, child: int, connection: FrameConnection, message: Any) -> None:
        """A front has called: tell it what it must know before it listens."""
        session = self._sessions[child] = FrontSession(self._service, self._cluster, connection.send)
        self._share(session)  # before it listens: it follows the introduction
        session.introduce(self._service.limits, self._fronts)

    def received(self, child: int, message: FromFront) -> None:
        """Take a front's message."""
        match message:
            case Calls():
                self._sessions[child].received(message)
            case Counted():
                self._service.tally.add(message)
            case RegionsKnown(change=change):
                self._sessions[child].regions_known(change)
            case FrontListens():
                self.ready(child)

    def lost(self, child: int) -> None:
        """A front is gone: nobody waits for its calls."""
        self._sessions.pop(child).close()


def _free_port(host: str, port: int) -> int:
    """Return a port that nobody listens at; raises if somebody listens at this one.

    Fronts share a port, so that the system would not tell them.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        return int(probe.getsockname()[1])
