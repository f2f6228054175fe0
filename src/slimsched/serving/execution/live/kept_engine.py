"""Servers that stay up from one live run to the next: a fresh gateway for each, started servers for all."""

from collections.abc import Collection

from slimsched.serving.execution.live.engine import Engine, EngineListener
from slimsched.serving.execution.live.messages import ToGateway, ToServer


class KeptEngine:
    """An engine whose servers outlive a run's `stop`: `open` starts them, `close` ends them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener: EngineListener | None = None
        self._up: set[int] = set()

    async def open(self) -> None:
        """Start the servers."""
        await self._engine.start(self)

    async def start(self, listener: EngineListener) -> None:
        """A run begins: tell it which servers are up."""
        self._listener = listener
        for server in sorted(self._up):
            listener.server_up(server)

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting."""
        self._engine.send(server, message)

    def peer_address(self, server: int) -> str:
        """Where other servers can fetch this one's activations."""
        return self._engine.peer_address(server)

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        self._engine.kill(server)

    async def stop(self, *, drain: bool = True) -> None:
        """The run is over; its servers wait for the next."""
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

    def server_leaving(self, server: int) -> None:
        """A server takes no more work."""
        self._up.discard(server)
        if self._listener is not None:
            self._listener.server_leaving(server)

    def received(self, server: int, message: ToGateway) -> None:
        """A server says something; between runs nobody listens."""
        if self._listener is not None:
            self._listener.received(server, message)
