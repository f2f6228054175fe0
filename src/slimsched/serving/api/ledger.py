"""What clients make the gateway keep: bytes and connections, by client address and in total."""

from ipaddress import IPv6Address, IPv6Network


def network_of(address: str) -> str:
    """Return the address that a client counts as: one client may have a whole /64 network of IP version 6."""
    if ":" not in address:
        return address  # of version 4, or of no network
    given = IPv6Address(address.partition("%")[0])
    if given.is_loopback:
        return address
    return str(IPv6Network((int(given) >> 64 << 64, 64)).network_address)


class Account:
    """What one client address has here."""

    __slots__ = ("address", "connections", "held_bytes")

    def __init__(self, address: str) -> None:
        self.address, self.connections, self.held_bytes = address, 0, 0


class Ledger:
    """Counts the bytes of requests that are here, from their first byte until they are answered."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.proxies: frozenset[str] = frozenset()
        """Addresses that many clients share: they may have all that there is."""
        self._accounts: dict[str, Account] = {}

    def open(self, address: str) -> Account:
        """Count one more connection of an address."""
        address = network_of(address)
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
        share = 1 if account.address in self.proxies else 2
        return self.held_bytes > limit_bytes or share * account.held_bytes > limit_bytes
