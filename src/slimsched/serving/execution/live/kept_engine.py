"""Keeps servers up between live runs: each run has a new gateway, and all runs use the same servers."""

from collections.abc import Collection

from slimsched.serving.execution.live.engine import Engine, EngineListener
from slimsched.serving.execution.live.input_arena import InputArena
from slimsched.serving.execution.live.messages import ToGateway, ToServer


class KeptEngine:
    """An engine whose servers survive `stop`: `open` starts them, `close` stops them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: EngineListener | None = None
        self._up: set[int] = set()

    @property
    def arena(self) -> InputArena | None:
        """Memory that the gateway shares with all servers."""
        return self._engine.arena

    async def open(self) -> None:
        """Start the servers."""
        await self._engine.start(self)

    async def start(self, listener: EngineListener) -> None:
        """Begin a run: tell its listener which servers are up."""
        self._listener = listener
        for server in sorted(self._up):
            listener.server_up(server)

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting."""
        self._engine.send(server, message)

    def peer_address(self, server: int) -> str:
        """Return the address where other servers fetch this server's activations."""
        return self._engine.peer_address(server)

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        self._engine.kill(server)

    def end(self) -> None:
        """Kill every server at once."""
        self._engine.end()

    async def stop(self, *, drain: bool = True) -> None:
        """End the run; the servers wait for the next one."""
        self._listener = None

    async def close(self) -> None:
        """Stop the servers."""
        await self._engine.stop()

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server takes work; it keeps the models it has."""
        self._up.add(server)
        if self._listener is not None:
            self._listener.server_up(server)

    def server_down(self, server: int) -> None:
        """A server is gone."""
        self._up.discard(server)
        if self._listener is not None:
            self._listener.server_down(server)

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """A server cannot be started."""
        if self._listener is not None:
            self._listener.server_given_up(server, reason, left)

    def servers_wait(self, servers: Collection[int]) -> None:
        """These servers get no core."""
        if self._listener is not None:
            self._listener.servers_wait(servers)

    def server_leaving(self, server: int) -> None:
        """A server accepts no more work."""
        self._up.discard(server)
        if self._listener is not None:
            self._listener.server_leaving(server)

    def received(self, server: int, message: ToGateway) -> None:
        """A server has sent a message; between runs it is ignored."""
        if self._listener is not None:
            self._listener.received(server, message)
