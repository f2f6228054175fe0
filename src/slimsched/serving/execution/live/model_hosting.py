"""Which models the servers of a live cluster must have, and which they have."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from slimsched.core.config import SlimError
from slimsched.serving.execution.live.messages import HostModel, ModelHosted, ToServer, UnhostModel

log = logging.getLogger("slim.models")

HOST_LIMIT_S = 300.0
"""How long servers may take to load a model."""


class ModelHosting:
    """Has models loaded by every server before they are used, also by servers that come up later."""

    def __init__(self, send: Callable[[int, ToServer], None], servers: int) -> None:
        self._send, self._servers = send, servers
        self._messages: dict[int, Sequence[HostModel]] = {}  # by model, then by server
        self._gone: set[int] = set()
        self._waiting: dict[int, set[int]] = {}  # servers that a model under way waits for
        self._loaded: dict[int, asyncio.Future[None]] = {}
        self._late: dict[int, set[int]] = {}  # by server: what it must load before it takes work

    async def host(self, number: int, messages: Sequence[HostModel], up: Collection[int]) -> None:
        """Let all servers that are up load a model, and return when they have; raise the first error."""
        loaded = self._loaded[number] = asyncio.get_running_loop().create_future()
        self._messages[number], self._waiting[number] = messages, set(up)
        for server in up:
            self._send(server, messages[server])
        self._look(number)
        try:
            await asyncio.wait_for(loaded, HOST_LIMIT_S)
        except BaseException as error:
            self.drop(number)
            if isinstance(error, TimeoutError):
                raise SlimError(f"servers took longer than {HOST_LIMIT_S:g} s to load it") from None
            raise
        finally:
            del self._loaded[number], self._waiting[number]

    def drop(self, number: int) -> None:
        """Let all servers give a model up; nobody asks for it any more."""
        self._messages.pop(number, None)
        self._gone.add(number)
        for server in range(self._servers):
            self._send(server, UnhostModel(number=number))

    def reported(self, server: int, message: ModelHosted) -> bool:
        """Note what a server says; True if it is a late one that now has all it needs."""
        number = message.number
        if (loaded := self._loaded.get(number)) is not None:
            if message.error and not loaded.done():
                loaded.set_exception(SlimError(message.error))
            self._waiting[number].discard(server)
            self._look(number)
        late = self._late.get(server)
        if late is None:
            return False
        if message.error:
            log.error("a server that came up late cannot load model %d: %s", number, message.error)
            return False
        late.discard(number)
        if not late:
            del self._late[server]
        return not late

    def came_up(self, server: int, has: Collection[int]) -> bool:
        """Whether a server that came up has all models; if not, it is sent the rest and `reported` tells."""
        for number in self._gone.intersection(has):
            self._send(server, UnhostModel(number=number))
        missing = self._messages.keys() - set(has)
        for number in missing:
            self._send(server, self._messages[number][server])
            if number in self._waiting:
                self._waiting[number].add(server)
        needed = missing - self._waiting.keys()
        if needed:
            self._late[server] = needed
        return not needed

    def went_down(self, server: int) -> None:
        """A model that a server did not survive is not to be served."""
        self._late.pop(server, None)
        for number, waiting in self._waiting.items():
            if server in waiting and not self._loaded[number].done():
                self._loaded[number].set_exception(SlimError("a server ended while it loaded it"))

    def _look(self, number: int) -> None:
        loaded = self._loaded[number]
        if not self._waiting[number] and not loaded.done():
            loaded.set_result(None)
