"""Health: which servers take work, and what is the matter with the others, in words."""

from collections.abc import Collection

from msgspec import Struct

from slimsched.serving.routing.gateway import Gateway

WAITS = "up, but it waits for a core: this machine is full"


class Health(Struct, frozen=True, kw_only=True):
    """The state of each server in words (up, down, or given up and why), and why none is up if none is."""

    servers: dict[str, str]
    trouble: str = ""


def health_of(gateway: Gateway, waiting: Collection[int] = ()) -> Health:
    """Return the health of a gateway's servers, of which these wait for a core."""
    alive, given_up = gateway.seen.alive, gateway.given_up
    up = {index: WAITS if index in waiting else "up" for index in gateway.seen.alive_ids}
    servers = {
        name: up.get(index) or given_up.get(index, "down") for index, name in enumerate(gateway.cluster.names)
    }
    return Health(servers=servers, trouble="" if alive.any() else _trouble(gateway))


def _trouble(gateway: Gateway) -> str:
    given_up = "; ".join(gateway.given_up.values())
    if gateway.hopeless:
        return f"no server is left: {given_up}; find the cause in the log (they are tried again now and then)"
    if given_up:
        return f"no server is up at the moment; some are being started again, but {given_up}"
    return "no server is up at the moment; they are being started again"
