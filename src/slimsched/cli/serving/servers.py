"""`slim servers`: list the servers of a Ray namespace, and let servers join and leave while it runs."""

import json
from typing import Annotated, Any

import typer

from slimsched.cli.options import AsJson, need
from slimsched.core.config import UnknownNameError

app = typer.Typer(no_args_is_help=True)

Namespace = Annotated[str, typer.Option("--attach", help="The namespace given to slim serve --attach.")]
Where = Annotated[str, typer.Option("--address", help="The Ray cluster, as auto or host:port.")]
Name = Annotated[str, typer.Argument(help="A server's name in the scenario.")]


@app.command("list")
def list_servers(attach: Namespace, address: Where = "auto", as_json: AsJson = False) -> None:
    """List the servers that are to run, and whether they are up.

    Examples:

      slim servers list --attach shop
    """
    servers = _ask(attach, address, "servers")
    if as_json:
        print(json.dumps(servers))
        return
    for name, is_up in servers.items():
        print(f"{name}: {'up' if is_up else 'coming up'}")


@app.command()
def start(name: Name, attach: Namespace, address: Where = "auto") -> None:
    """Let a server join.

    Examples:

      slim servers start late --attach shop
    """
    _ask(attach, address, "start_server", name)
    print(f"{name} joins once it is warmed up")


@app.command()
def drain(name: Name, attach: Namespace, address: Where = "auto") -> None:
    """Let a server finish what it has, and stop it.

    Examples:

      slim servers drain late --attach shop
    """
    _ask(attach, address, "drain_server", name)
    print(f"{name} has left")


def _ask(namespace: str, address: str, method: str, *names: str) -> Any:
    """Call the roster of a namespace."""
    from slimsched.serving.ray.engine import RayError, connect

    need("ray")
    connect(address, namespace)
    import ray

    from slimsched.serving.ray.messages import ROSTER

    try:
        roster = ray.get_actor(ROSTER, namespace)
    except ValueError:
        raise RayError(
            f"nobody serves in namespace '{namespace}'; see slim serve --engine ray --attach"
        ) from None
    known = ray.get(roster.names.remote())
    for name in names:
        if name not in known:
            raise UnknownNameError("server", name, known)
    return ray.get(getattr(roster, method).remote(*names))
