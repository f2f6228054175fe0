"""What clients make the gateway keep: bytes and connections, by client address and in total."""


class Account:
    """What one client address has here."""

    __slots__ = ("address", "connections", "held_bytes")

    def __init__(self, address: str) -> None:
        self.address, self.connections, self.held_bytes = address, 0, 0


class Ledger:
    """Counts the bytes of requests that are here, from their first byte until they are answered."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._accounts: dict[str, Account] = {}

    def open(self, address: str) -> Account:
        """Count one more connection of an address."""
        account = self._accounts.get(address)
        if account is None:
            account = self._accounts[address] = Account(address)
        account.connections += 1
        return account

    def close(self, account: Account) -> None:
        """Count one connection less; forget an address that has none."""
        account.connections -= 1
        if not account.connections:
            self._accounts.pop(account.address, None)

    def hold(self, account: Account, size: int) -> None:
        """Count bytes that came, or with a negative size bytes that went."""
        account.held_bytes += size
        self.held_bytes += size

    def is_full(self, account: Account, limit_bytes: int) -> bool:
        """Whether all clients hold more than the limit, or this address alone more than half of it."""
        return self.held_bytes > limit_bytes or 2 * account.held_bytes > limit_bytes
