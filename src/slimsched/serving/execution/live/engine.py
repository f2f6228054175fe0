"""The interface of engines, which start servers for a live cluster and carry messages to them."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.model import ModelEntry
from slimsched.serving.execution.live.input_arena import InputArena
from slimsched.serving.execution.live.messages import ToGateway, ToServer
from slimsched.serving.routers.autoscaler import Load


class EngineListener(Protocol):
    """Receives the events of an engine."""

    def server_up(self, server: int, models: Collection[int] | None = None) -> None:
        """A server is warmed up and takes work, with these models; None: with all of them."""
        ...

    def server_down(self, server: int) -> None:
        """A server is gone; the engine starts it again, unless it must leave."""
        ...

    def server_given_up(self, server: int, reason: str, left: int) -> None:
        """A server cannot be started; `left` others run or are being started."""
        ...

    def servers_wait(self, servers: Collection[int]) -> None:
        """These servers, and no others, are silent because they get no core: the machine is full."""
        ...

    def server_leaving(self, server: int) -> None:
        """A server accepts no more work; `server_down` follows when its work is done."""
        ...

    def received(self, server: int, message: ToGateway) -> None:
        """A server has sent a message."""
        ...


class Engine(Protocol):
    """Starts, supervises and stops servers, and carries messages."""

    @property
    def arena(self) -> InputArena | None:
        """Memory that the gateway shares with all servers; None if they are on other machines."""
        ...

    async def start(self, listener: EngineListener) -> None:
        """Start every server and return when all are ready."""
        ...

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting; messages to a dead server are lost, and `server_down` reports that."""
        ...

    def peer_address(self, server: int) -> str:
        """Return the address where other servers fetch this server's activations."""
        ...

    def kill(self, server: int) -> None:
        """Kill a server at once, as a fault would."""
        ...

    def end(self) -> None:
        """Kill every server at once and clean up, because this process is about to end."""
        ...

    async def stop(self, *, drain: bool = True) -> None:
        """Stop every server; with `drain`, after its work is done."""
        ...


@runtime_checkable
class ModelChanger(Protocol):
    """An engine whose servers can load other models while they run."""

    def set_models(self, entries: Sequence[ModelEntry], cluster: Cluster) -> None:
        """Let servers that start from now on begin with these models."""
        ...


@runtime_checkable
class LoadWatcher(Protocol):
    """An engine that starts and stops servers by the load."""

    def watch_load(self, load: Callable[[], Load]) -> None:
        """Set the function that returns the current load."""
        ...
