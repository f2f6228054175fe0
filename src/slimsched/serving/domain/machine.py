"""The names of a cluster's state machines in its event log."""

GATEWAY_NAME = "gateway"
AUTOSCALER_NAME = "autoscaler"


def life_name(server: str, life: int) -> str:
    """Name one life of a server: 'server-0', then 'server-0#2' after it has died and started again."""
    return server if life == 1 else f"{server}#{life}"


def server_of(machine: str) -> str:
    """Return a server's name without the number of its life."""
    return machine.partition("#")[0]
