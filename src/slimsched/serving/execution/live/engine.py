"""Who starts servers and carries messages to them: the seam between a live cluster and its machines."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model_change import ModelEntry
from slimsched.serving.execution.live.messages import ToGateway, ToServer
from slimsched.serving.routing.autoscaler import Load


class EngineListener(Protocol):
    """Whom an engine tells what happens."""

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server is warmed up and takes work, with these models; None: with all of them."""
        ...

    def server_down(self, server: int) -> None:
        """A server is gone; the engine is starting it again."""
        ...

    def server_leaving(self, server: int) -> None:
        """A server takes no more work; `server_down` follows when it has finished what it has."""
        ...

    def received(self, server: int, message: ToGateway) -> None:
        """A server says something."""
        ...


class Engine(Protocol):
    """Starts, supervises and stops servers, and carries messages."""

    async def start(self, listener: EngineListener) -> None:
        """Start every server and return when all are ready."""
        ...

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting; what a dead server was sent is lost, and `server_down` says so."""
        ...

    def peer_address(self, server: int) -> str:
        """Where other servers can fetch this one's activations."""
        ...

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        ...

    async def stop(self, *, drain: bool = True) -> None:
        """Stop every server, with `drain` after its work is done."""
        ...


@runtime_checkable
class ModelChanger(Protocol):
    """An engine whose servers can load other models while they run."""

    def set_models(self, entries: Sequence[ModelEntry], cluster: Cluster) -> None:
        """Let servers that start from now on begin with these models."""
        ...


@runtime_checkable
class LoadWatcher(Protocol):
    """An engine that starts and stops servers by the load, and so must see it."""

    def watch_load(self, load: Callable[[], Load]) -> None:
        """Ask this for the load from now on."""
        ...
