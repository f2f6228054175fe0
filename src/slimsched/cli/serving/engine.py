"""Which engine runs the servers: its options on the command line, and the engine itself."""

from concurrent.futures import Executor
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from slimsched.cli.failure import need
from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.core.log import LogFolder
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.gateway import Gateway

if TYPE_CHECKING:
    from slimsched.serving.execution.live.engine import Engine
    from slimsched.serving.execution.live.local_engine import LocalEngine
    from slimsched.serving.execution.live.run_log import RunLog

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
        from slimsched.serving.execution.ray.tasks import RayTasks

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
        from slimsched.serving.execution.live.engine import LoadWatcher
        from slimsched.serving.routing.autoscaler import load_of

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
    from slimsched.serving.execution.live.run import specs_of
    from slimsched.serving.execution.ray.engine import join

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
    from slimsched.serving.execution.live.local_engine import LocalEngine
    from slimsched.serving.execution.live.run import specs_of

    need("torch")  # in the server processes, where nobody would see that it is missing
    zero_s, log = monotonic(), _open_log(setting, folder, servers=len(scenario.cluster))
    at_first = None if scenario.autoscale is None else scenario.autoscale.min
    local = LocalEngine(specs_of(scenario, zero_s, log), at_first=at_first, writers=writers)
    return OpenEngine(local, zero_s, 0, log, fleet=local)


def _open_log(setting: RunSetting, folder: LogFolder | None, *, servers: int) -> "RunLog | None":
    from slimsched.serving.execution.live.run_log import RunLog

    if folder is None:
        return None
    return RunLog(folder.run, setting, servers, limit_bytes=folder.limit_bytes)


def _check(engine: str, ray_option: str | None) -> None:
    if engine != "ray" and ray_option:
        raise ConfigError("--address and --attach are for --engine ray")
