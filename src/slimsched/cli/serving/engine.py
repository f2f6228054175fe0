"""Which engine runs the servers: its options on the command line, and the engine itself."""

import logging
from concurrent.futures import Executor
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace

from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.kernel.log_folder import LogFolder
from slimsched.serving.execution.run_setting import RunSetting
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.gateway import Gateway

if TYPE_CHECKING:
    from slimsched.serving.execution.live.engine import Engine
    from slimsched.serving.execution.live.run_log import RunLog

ENGINES = ("local", "ray")

EngineName = Annotated[
    str, typer.Option("--engine", help="local: processes on this machine; ray: actors on a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="Ray to join, as auto or host:port; left out: one is started here."),
]
Attach = Annotated[
    str, typer.Option("--attach", help="Share the servers of this Ray namespace with other gateways.")
]


class EngineChoice(Struct, frozen=True, kw_only=True):
    """The options that choose an engine."""

    name: str = "local"
    address: str | None = None
    attach: str = ""

    def check(self) -> "EngineChoice":
        """The same if it is possible."""
        if self.name not in ENGINES:
            raise UnknownNameError("engine", self.name, ENGINES)
        if self.name != "ray" and (self.address or self.attach):
            raise ConfigError("--address and --attach are for --engine ray")
        return self


class Opened:
    """An engine, when its clock began, and the numbers it gives requests and blocks."""

    def __init__(self, engine: "Engine", clock_zero_s: float, first_id: int, log: "RunLog | None") -> None:
        self.engine, self.clock_zero_s, self.first_id, self.log = engine, clock_zero_s, first_id, log

    def watch(self, gateway: Gateway) -> None:
        """Let an engine that scales by the load see what the gateway has to carry."""
        from slimsched.serving.execution.live.engine import LoadWatcher
        from slimsched.serving.routing.autoscaler import load_of

        if isinstance(self.engine, LoadWatcher):
            self.engine.watch_load(lambda: load_of(gateway))


def task_pool(engine: str, address: str | None) -> Executor | None:
    """Where the runs of a sweep are done: None for processes on this machine."""
    if EngineChoice(name=engine, address=address).check().name == "local":
        return None
    from slimsched.serving.execution.ray.tasks import RayTasks

    return RayTasks(address)


def open_engine(
    choice: EngineChoice, scenario: Scenario, setting: RunSetting, folder: LogFolder | None
) -> Opened:
    """The engine for a scenario's servers; they start when it is started.

    With a folder the run is logged there. Servers on Ray write no logs: they may be on other machines and
    serve several gateways, each of which logs all that it was told and decided.
    """
    from slimsched.serving.execution.live.run import specs_of
    from slimsched.serving.execution.live.run_log import RunLog

    if choice.name == "ray":
        from slimsched.serving.execution.ray.engine import join

        engine = join(
            specs_of(scenario, 0.0),
            address=choice.address,
            namespace=choice.attach,
            autoscale=scenario.autoscale,
        )
        setting, log = replace(setting, first_id=engine.first_id), None
        if folder is not None:
            log = RunLog(folder.run, setting, 0, limit_bytes=folder.limit_bytes)
        return Opened(engine, engine.clock_zero_s, engine.first_id, log)
    from slimsched.serving.execution.live.local_engine import LocalEngine

    if scenario.autoscale is not None:
        logging.getLogger("slim.serve").warning("[autoscale] is for --engine ray; all servers run")
    zero_s, log = monotonic(), None
    if folder is not None:
        log = RunLog(folder.run, setting, len(scenario.cluster), limit_bytes=folder.limit_bytes)
    return Opened(LocalEngine(specs_of(scenario, zero_s, log)), zero_s, 0, log)
