"""Health: which servers take work, and what is the matter with the others, in words."""

from msgspec import Struct

from slimsched.serving.routing.gateway import Gateway


class Health(Struct, frozen=True, kw_only=True):
    """The state of each server (up, down, or given up and why), and why none is up if none is."""

    servers: dict[str, str]
    trouble: str = ""


def health_of(gateway: Gateway) -> Health:
    """Return the health of a gateway's servers."""
    alive, given_up = gateway.seen.alive, gateway.given_up
    servers = {
        name: "up" if alive[index] else given_up.get(index, "down")
        for index, name in enumerate(gateway.cluster.names)
    }
    return Health(servers=servers, trouble="" if alive.any() else _trouble(gateway))


def _trouble(gateway: Gateway) -> str:
    given_up = "; ".join(gateway.given_up.values())
    if gateway.hopeless:
        return f"no server is left: {given_up}; find the cause in the log (they are tried again now and then)"
    if given_up:
        return f"no server is up at the moment; some are being started again, but {given_up}"
    return "no server is up at the moment; they are being started again"
