"""Which engine runs the servers: its options on the command line, and the engine itself."""

from concurrent.futures import Executor
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from slimsched.cli.options import need
from slimsched.cli.serving.scenario import GoalText, RouterSpec
from slimsched.core.config import ConfigError, FrontCount, LogMegabytes, Port, UnknownNameError
from slimsched.core.log import LogFolder
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.routers.registry import SERVING
from slimsched.serving.scenario.files import RunSetting
from slimsched.serving.scenario.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.live.processes import Engine, LocalEngine, RunLog

# -- What `slim serve` is told.


class ServeOptions(Struct, frozen=True, kw_only=True):
    """How to serve: the router, where to listen, whom to let in, and what to log."""

    router: RouterSpec = SERVING
    goal: GoalText = None
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1"
    http_port: Annotated[Port, typer.Option("--http-port", help="HTTP port; 0 means any free one.")] = 8000
    grpc_port: Annotated[Port, typer.Option("--grpc-port", help="gRPC port; 0 means any free one.")] = 8001
    fronts: Annotated[
        FrontCount | None,
        typer.Option(
            "--fronts",
            help="Processes that read requests; 0: the gateway does. If left out, one for every four cores "
            "from eight cores on.",
        ),
    ] = None
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="SLIM_TOKEN",
            help="Bearer token that clients must send. Everybody on this machine can see it among the "
            "processes; SLIM_TOKEN or --token-file hide it.",
        ),
    ] = ""
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the bearer token that clients must send.")
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help="Set a limit of the door, such as connections=500; docs/reliability.md lists them.",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", help="Certificate (PEM).")] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key (PEM).")] = None
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            help="Let web pages of this origin use the server from a browser, such as https://example.org; "
            "* lets all pages. May be repeated.",
        ),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option("--state", envvar="SLIM_STATE", help="File that keeps a goal set while running."),
    ] = None
    model_repository: Annotated[
        Path | None,
        typer.Option(
            "--model-repository",
            metavar="FOLDER",
            help="Let clients load and unload models while running, from this folder only.",
        ),
    ] = None
    shared_memory: Annotated[
        bool,
        typer.Option(
            "--shared-memory",
            help="Let clients on this machine pass tensors in shared memory, of this user or of a GPU.",
        ),
    ] = False
    log_format: Annotated[str, typer.Option("--log-format", help="text, or json: one object per line.")] = (
        "text"
    )
    log: Annotated[
        Path | None,
        typer.Option(
            "--log", help="Keep event logs in this folder, one sub-folder per start (see slim replay)."
        ),
    ] = None
    log_limit: Annotated[
        LogMegabytes,
        typer.Option("--log-limit", help="Megabytes that --log keeps; the oldest runs are removed first."),
    ] = 1000.0
    access_log: Annotated[bool, typer.Option("--access-log", help="Log every response.")] = False
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send OpenTelemetry traces (OTEL_EXPORTER_OTLP_ENDPOINT says where)."),
    ] = False


ENGINES = ("local", "ray")


def _engine(name: str) -> str:
    """Refuse an engine that is unknown or not installed."""
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if name == "ray":
        need("ray")
    return name


EngineName = Annotated[
    str,
    typer.Option(
        "--engine", callback=_engine, help="local: processes on this machine; ray: actors on a Ray cluster."
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Ray cluster to join, as auto or host:port; if left out, one is started."),
]


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Where many simulated runs are done."""

    engine: EngineName = "local"
    address: Address = None

    def open(self) -> Executor | None:
        """Return the pool that runs are given to; None means processes on this machine."""
        _check(self.engine, self.address)
        if self.engine == "local":
            return None
        from slimsched.serving.ray.engine import RayTasks

        return RayTasks(self.address)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """Where servers run."""

    engine: EngineName = "local"
    address: Address = None
    attach: Annotated[
        str, typer.Option("--attach", help="Share the servers of this Ray namespace with other gateways.")
    ] = ""

    def check(self) -> None:
        """Refuse options that do not go together."""
        _check(self.engine, self.address or self.attach)


class OpenEngine:
    """An engine, when its clock began, and the first number it gives requests and blocks."""

    def __init__(
        self,
        engine: "Engine",
        clock_zero_s: float,
        first_id: int,
        log: "RunLog | None",
        fleet: "LocalEngine | None" = None,
    ) -> None:
        self.engine, self.clock_zero_s, self.first_id, self.log = engine, clock_zero_s, first_id, log
        self.fleet = fleet
        """The servers, where this process starts and stops them by the load; on Ray the roster does."""

    def watch(self, gateway: Gateway) -> None:
        """Let an engine that scales by the load see what the gateway has to carry."""
        from slimsched.serving.live.processes import LoadWatcher
        from slimsched.serving.routers.autoscaler import load_of

        if self.fleet is not None:
            self.fleet.watch_need(gateway.holds_for)
        if isinstance(self.engine, LoadWatcher):
            self.engine.watch_load(lambda: load_of(gateway))


def open_engine(
    choice: EngineOptions,
    scenario: Scenario,
    setting: RunSetting,
    folder: LogFolder | None,
    *,
    writers: int = 1,
) -> OpenEngine:
    """Open the engine for a scenario's servers; they start when the engine is started.

    `writers` processes put inputs into the memory that local servers share. With a folder the run is logged
    there. Servers on Ray write no logs: they may be on other machines and serve several gateways, each of
    which logs all that it was told and decided.
    """
    if choice.engine == "ray":
        return _open_ray(choice, scenario, setting, folder)
    return _open_local(scenario, setting, folder, writers)


def _open_ray(
    choice: EngineOptions, scenario: Scenario, setting: RunSetting, folder: LogFolder | None
) -> OpenEngine:
    from slimsched.serving.measure.live_runs import specs_of
    from slimsched.serving.ray.engine import join

    engine = join(
        specs_of(scenario, 0.0),
        address=choice.address,
        namespace=choice.attach,
        autoscale=scenario.autoscale,
    )
    log = _open_log(replace(setting, first_id=engine.first_id), folder, servers=0)
    return OpenEngine(engine, engine.clock_zero_s, engine.first_id, log)


def _open_local(
    scenario: Scenario, setting: RunSetting, folder: LogFolder | None, writers: int
) -> OpenEngine:
    from slimsched.serving.live.processes import LocalEngine
    from slimsched.serving.measure.live_runs import specs_of

    need("torch")  # in the server processes, where nobody would see that it is missing
    zero_s, log = monotonic(), _open_log(setting, folder, servers=len(scenario.cluster))
    at_first = None if scenario.autoscale is None else scenario.autoscale.min
    local = LocalEngine(specs_of(scenario, zero_s, log), at_first=at_first, writers=writers)
    return OpenEngine(local, zero_s, 0, log, fleet=local)


def _open_log(setting: RunSetting, folder: LogFolder | None, *, servers: int) -> "RunLog | None":
    from slimsched.serving.live.processes import RunLog

    if folder is None:
        return None
    return RunLog(folder.run, setting, servers, limit_bytes=folder.limit_bytes)


def _check(engine: str, ray_option: str | None) -> None:
    if engine != "ray" and ray_option:
        raise ConfigError("--address and --attach are for --engine ray")
