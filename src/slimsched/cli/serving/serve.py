"""`slim serve`: the cluster behind the Open Inference Protocol."""

import asyncio
import gc
import logging
import os
import signal
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimsched.cli.serving import engine as engines
from slimsched.cli.serving import scenario as options
from slimsched.cli.serving.event_loop import run
from slimsched.kernel.errors import ConfigError, SlimError
from slimsched.kernel.log_folder import LogFolder
from slimsched.serving.api import structured_log
from slimsched.serving.api.goal_control import GoalState
from slimsched.serving.api.tracing import Traces, otlp_traces
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.registry import SERVING, goal_spec
from slimsched.serving.routing.goal_text import goal_options, parse_goal


def command(
    scenario: options.ScenarioName = "laptop",
    config: options.ConfigFile = None,
    router: Annotated[str, typer.Option("--router", help="The router; options follow a colon.")] = SERVING,
    goal: Annotated[
        str | None, typer.Option("--goal", help='As "accuracy>=75, p99<=60ms, min energy".')
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option("--http-port", help="HTTP port; 0: any free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option("--grpc-port", help="gRPC port; 0: any free one.")] = 8001,
    engine: engines.EngineName = "local",
    address: engines.Address = None,
    attach: engines.Attach = "",
    token: Annotated[str, typer.Option("--token", envvar="SLIM_TOKEN", help="Bearer token to ask for.")] = "",
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).")] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", envvar="SLIM_STATE", help="File that keeps a goal set while running."),
    ] = None,
    log_format: Annotated[
        str, typer.Option("--log-format", help="text, or json: one object a line.")
    ] = "text",
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", help="Keep event logs in this folder, one sub-folder per start (see slim replay)."
        ),
    ] = None,
    log_limit: Annotated[
        float, typer.Option("--log-limit", help="Megabytes that --log keeps; the oldest runs go first.")
    ] = 1000.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every response.")] = False,
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send OpenTelemetry traces (OTEL_EXPORTER_OTLP_ENDPOINT says where)."),
    ] = False,
) -> None:
    """Serve SlimResNet on this machine until told to stop (SIGTERM or Ctrl-C drains first).

    Examples:

      slim serve

      slim serve --goal "accuracy>=75, p99<=60ms, min energy"

      slim serve --http-port 9000 --token secret

      slim serve --log logs

      slim serve --engine ray --address auto

      curl localhost:8000/v2/models/slimresnet
    """
    chosen, raw, path = options.choose(scenario, config, None, None, None, None)
    chosen = chosen.for_clients()
    if goal is not None:
        router = goal_spec(router, **goal_options(parse_goal(goal)))
    setting = RunSetting(
        scenario=raw,
        beside="" if config is None else str(path.parent.resolve()),
        router=router,
        for_clients=True,
    )
    folder = None if log is None else _log_folder(log, log_limit)
    tls = _tls(tls_cert, tls_key)
    if log_format not in structured_log.FORMATS:
        raise ConfigError(f"--log-format '{log_format}' is unknown; use text or json")
    structured_log.set_up(log_format, os.environ.get("SLIM_LOG", "INFO"))
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # servers are started afresh, never forked
    console = Console(stderr=True, quiet=log_format == "json")
    if host not in ("127.0.0.1", "::1", "localhost") and not token:
        console.print(f"[yellow]listening at {host} without a token: anyone can use this server[/yellow]")
    traces = otlp_traces(chosen.cluster.names) if otel else None
    work = _serve(
        chosen,
        engines.EngineChoice(name=engine, address=address, attach=attach).check(),
        setting,
        host,
        (http_port, grpc_port),
        token,
        tls,
        console=console,
        access_log=access_log,
        traces=traces,
        state=None if state is None else GoalState(state, router),
        folder=folder,
    )
    run(work)


async def _serve(
    chosen: Scenario,
    choice: engines.EngineChoice,
    setting: RunSetting,
    host: str,
    ports: tuple[int, int],
    token: str,
    tls: "Tls | None",
    *,
    console: Console,
    access_log: bool,
    traces: Traces | None,
    state: GoalState | None,
    folder: LogFolder | None,
) -> None:
    from slimsched.dashboard.live import Dashboard
    from slimsched.kernel.observer import Observer
    from slimsched.models.slimresnet import shipped
    from slimsched.models.slimresnet.weights import read_card
    from slimsched.serving.api.goal_control import GoalControl
    from slimsched.serving.api.grpc_server import GrpcServer
    from slimsched.serving.api.http_server import HttpServer, json_page
    from slimsched.serving.api.metrics import Metrics
    from slimsched.serving.api.openapi import document
    from slimsched.serving.api.service import InferenceService, Limits
    from slimsched.serving.execution.live.cluster import LiveCluster
    from slimsched.serving.learning.registry import make_router
    from slimsched.serving.routing.gateway import Gateway

    router = setting.router
    opened = engines.open_engine(choice, chosen, setting, folder)
    policy = make_router(router, chosen.cluster, 0)
    gateway = Gateway(chosen.cluster, policy, chosen.gateway, first_block=opened.first_id)
    opened.watch(gateway)
    observers: list[Observer] = []
    cluster = LiveCluster(
        gateway, opened.engine, observers, clock_zero_s=opened.clock_zero_s, first_id=opened.first_id
    )
    service = InferenceService(cluster, read_card(shipped.folder() / f"{shipped.NAME}.json"), Limits())
    service.tally.access_log = access_log
    metrics = Metrics(gateway, service.tally, cluster.power_source, router)
    dashboard = Dashboard(
        chosen.cluster,
        router,
        now=lambda: cluster.now_s,
        phase=lambda: str(service.phase),
        power_sources=lambda: cluster.power_sources,
    )
    observers += [metrics, dashboard.view, structured_log.ServerLog(chosen.cluster.names)]
    if traces is not None:
        observers.append(traces.spans)
    tasks: list[asyncio.Task[None]] = []
    if opened.log is not None and folder is not None:
        observers.insert(0, opened.log)
        metrics.log = opened.log
        tasks.append(asyncio.create_task(opened.log.keep(folder.make_room)))
        _say(console, f"event logs: {folder.run}")
    schema = document(service.limits, service.card.shape.image_size)
    pages = {"/metrics": metrics.page, "/openapi.json": lambda: json_page(schema), **dashboard.pages}
    goal = GoalControl(gateway, cluster.set_goal, state)
    if (kept := goal.resume()) is not None:
        _say(console, f"going on with the goal set before: {kept}")
    http = HttpServer(service, token=token, pages=pages, goal=goal, assets=dashboard.assets)
    grpc = GrpcServer(service, token=token)
    try:
        http_port = await http.start(host, ports[0], tls.context if tls else None)
        grpc_port = await grpc.start(host, ports[1], tls.grpc_credentials() if tls else None)
    except (OSError, RuntimeError) as error:
        raise SlimError(
            f"cannot listen at {host}, ports {ports[0]} and {ports[1]} ({error}); "
            "choose others with --http-port and --grpc-port"
        ) from None
    tasks.append(asyncio.create_task(dashboard.run()))
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    with console.status(f"starting {len(chosen.cluster)} servers"):
        started = await _unless(stop, service.start())
    if not started:
        await asyncio.gather(http.stop(), grpc.stop())
        _end(tasks, opened)
        return
    gc.collect()
    gc.freeze()  # what is here now stays: no collection needs to look at it again
    gc.set_threshold(20_000, 20, 20)  # requests leave no cycles behind
    address = f"http{'s' if tls else ''}://{host}:{http_port}"
    _say(console, f"ready: {address}/v2/models/slimresnet, gRPC at {host}:{grpc_port}, router {router}")
    _say(console, f"dashboard: {address}/")
    await stop.wait()
    _say(console, "draining")
    await service.drain()
    await asyncio.gather(http.stop(), grpc.stop())
    _end(tasks, opened)
    if traces is not None:
        traces.close()


def _end(tasks: list[asyncio.Task[None]], opened: engines.Opened) -> None:
    """Stop what runs beside the service, and end the log."""
    for task in tasks:
        task.cancel()
    if opened.log is not None:
        opened.log.close()


def _log_folder(folder: Path, limit_mb: float) -> LogFolder:
    """Make the folder of this start's logs."""
    if limit_mb <= 0:
        raise ConfigError(f"--log-limit is {limit_mb:g}; give megabytes above 0")
    return LogFolder(folder, int(1e6 * limit_mb))


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do the work, or break it off when told to stop; whether it was done."""
    task, told = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    await task
    return True


def _say(console: Console, text: str) -> None:
    """To people on the console, or, where that is quiet, to the log."""
    console.print(text, soft_wrap=True)
    if console.quiet:
        logging.getLogger("slim.serve").info(text)


class Tls:
    """A certificate and its key, for either protocol."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"cannot use {cert} and {key} for TLS: {error}") from None
        self._pair = (key.read_bytes(), cert.read_bytes())

    def grpc_credentials(self) -> object:
        """The same pair as gRPC takes it."""
        import grpc

        return grpc.ssl_server_credentials([self._pair])


def _tls(cert: Path | None, key: Path | None) -> Tls | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    return Tls(cert, key)
