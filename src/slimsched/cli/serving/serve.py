"""`slim serve`: the cluster behind the Open Inference Protocol."""

import os
from pathlib import Path

import typer
from rich.console import Console

from slimsched.cli.options import need, with_options
from slimsched.cli.serving.engine import EngineOptions, ServeOptions
from slimsched.cli.serving.scenario import (
    Choice,
    LiveScenarioOptions,
    check_goal,
    check_reach,
)
from slimsched.core.config import ConfigError
from slimsched.serving.routers.registry import SERVING

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


@with_options
def command(scenario: LiveScenarioOptions, engine: EngineOptions, served: ServeOptions) -> None:
    """Serve models on this machine until told to stop (SIGTERM or Ctrl-C drains first).

    Examples:

      slim serve

      slim serve --goal "accuracy>=75, p99<=60ms, min energy"

      slim serve --model my-model --model another

      slim serve --router my_router.py:MyRouter

      slim serve --http-port 9000 --token-file token.txt

      slim serve --log logs

      slim serve --model cats --model dogs

      slim serve --model-repository models

      slim serve --shared-memory

      slim serve --cors https://example.org

      slim serve --engine ray --address auto

      curl localhost:8000/v2/models/slimresnet
    """
    from slimsched.serving.api import metrics
    from slimsched.serving.api.ciphers import CIPHERS
    from slimsched.serving.live.wire import run

    check_goal(served.goal, [served.router])
    chosen = scenario.read(served.goal)
    check_reach([served.router], chosen.scenario)
    engine.check()
    if served.otel:
        need("opentelemetry.sdk")
    if served.model_repository is not None and engine.engine != "local":
        raise ConfigError("--model-repository works with --engine local only; leave one of them out")
    if served.shared_memory:
        _check_shared_memory(served)
    if served.log_format not in metrics.FORMATS:
        raise ConfigError(f"--log-format '{served.log_format}' is unknown; use text or json")
    metrics.set_up(served.log_format, os.environ.get("SLIM_LOG", "INFO"))
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # servers are started afresh, never forked
    os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", CIPHERS)  # gRPC reads both when it is imported
    console = Console(stderr=True, quiet=served.log_format == "json")
    if served.host not in LOCAL_HOSTS and not (served.token or served.token_file):
        console.print(
            f"[yellow]listening at {served.host} without a token: anyone can use this server[/yellow]"
        )
    run(_serve(chosen, engine, served, console))


def _check_shared_memory(served: ServeOptions) -> None:
    """Refuse to let strangers name this user's shared memory."""
    if not Path("/dev/shm").is_dir():
        raise ConfigError("--shared-memory needs /dev/shm, which this system has not; leave it out")
    if served.host not in LOCAL_HOSTS and not (served.token or served.token_file):
        raise ConfigError(
            f"--shared-memory with --host {served.host} lets anyone read and write this user's shared "
            "memory; give --token-file as well, or listen on this machine only"
        )


def serve(
    *models: str | Path,
    scenario: str = "laptop",
    goal: str | None = None,
    router: str = SERVING,
    host: str = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    token: str = "",
) -> None:
    """Serve models on this machine until told to stop, as `slim serve` does.

    Each model is a folder; without any, the shipped network is served. `scenario` is the name of a shipped
    scenario, or the path of one of your own.
    """
    from slimsched.serving.live.wire import run

    is_file = scenario.endswith(".toml")
    options = LiveScenarioOptions(
        scenario="laptop" if is_file else scenario,
        config=Path(scenario) if is_file else None,
        model=[str(model) for model in models] or None,
    )
    check_goal(goal, [router])
    served = ServeOptions(
        router=router, goal=goal, host=host, http_port=http_port, grpc_port=grpc_port, token=token
    )
    run(_serve(options.read(goal), EngineOptions(), served, Console(stderr=True)))


async def _serve(chosen: Choice, engine: EngineOptions, served: ServeOptions, console: Console) -> None:
    from slimsched.cli.serving.front_door import FrontDoor  # it needs the event loop, and imports gRPC

    if not await FrontDoor(chosen, engine, served, console).run():
        raise typer.Exit(1)
