"""The open HTTP connections: how many there may be, which are too slow, and how they end."""

import asyncio
from typing import Protocol

from slimsched.serving.api.ledger import Account, Ledger
from slimsched.serving.api.limits import Limits

SWEEP_S = 0.25
ROOM_AFTER_S = 5.0
"""At the limit, a connection that was idle for longer makes room for a new one."""
ABORTED_WITHIN_S = 1.0


class Connection(Protocol):
    """One connection, as far as the others are concerned."""

    account: Account
    idle_since_s: float | None

    @property
    def unread_bytes(self) -> int:
        """What was written and not sent yet."""
        ...

    def check(self, now_s: float) -> None:
        """End the connection if its client is too slow."""

    def close_when_done(self) -> None:
        """Close after the answers under way."""

    def abort(self) -> None:
        """Close at once."""


class Connections:
    """Checks all connections regularly; one check for all costs less than a timer for each request."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._open: set[Connection] = set()
        self._unread: dict[Connection, None] = {}  # those whose clients are behind, the first one first
        self._sweeping: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to check."""
        loop = asyncio.get_running_loop()
        for connection in list(self._open):
            connection.check(loop.time())
        self._sweeping = loop.call_later(SWEEP_S, self.start)

    def add(self, connection: Connection, limits: Limits) -> str:
        """Count a new connection; return why it cannot be served, or nothing."""
        self._open.add(connection)
        account = connection.account
        is_proxy = account.address in self.ledger.proxies
        is_greedy = account.connections > limits.connections_per_address and not is_proxy
        if is_greedy and not self._make_room(account):
            return f"{limits.connections_per_address} connections are open from this address"
        if len(self._open) > limits.connections and not self._make_room(None):
            return f"{limits.connections} connections are open"
        return ""

    def remove(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self._open.discard(connection)
        self._unread.pop(connection, None)

    def falls_behind(self, connection: Connection, limits: Limits) -> None:
        """Note that a client does not read; the one behind for longest goes if all leave too much unread."""
        self._unread[connection] = None
        unread = sum(one.unread_bytes for one in self._unread)
        while unread > limits.unread_bytes:
            slowest = next(iter(self._unread))
            unread -= slowest.unread_bytes
            del self._unread[slowest]
            slowest.abort()

    def catches_up(self, connection: Connection) -> None:
        """Note that a client has read what it was sent."""
        self._unread.pop(connection, None)

    async def stop(self, within_s: float) -> None:
        """Let each connection finish its answers; after the given time, close those that are left."""
        for connection in list(self._open):
            connection.close_when_done()
        await self._closed(within_s)
        for connection in list(self._open):
            connection.abort()
        await self._closed(ABORTED_WITHIN_S)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def abort(self) -> None:
        """Close all connections at once."""
        for connection in list(self._open):
            connection.abort()

    async def _closed(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self._open and loop.time() < until_s:
            await asyncio.sleep(0.01)

    def _make_room(self, account: Account | None) -> bool:
        """Close the connection that was idle for longest, of one address or of any."""
        idle = [
            (one.idle_since_s, place, one)
            for place, one in enumerate(self._open)
            if one.idle_since_s is not None and account in (None, one.account)
        ]
        if not idle:
            return False
        since_s, _, longest = min(idle)
        if asyncio.get_running_loop().time() - since_s < ROOM_AFTER_S:
            return False
        longest.abort()
        return True
