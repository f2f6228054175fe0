"""The composition root: puts a server together, and runs it until it is told to stop.

`slim serve` and `slimsched.serve` make a `ServerApp`. Its constructor makes every part once, in the order in
which they need each other: engine, gateway, observers, cluster, service, pages, protocols, fronts. Parts get
what they need as arguments; nothing is set from outside afterwards.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from slimsched.core.config import ConfigError, SlimError
from slimsched.core.log import LogFolder, Observer
from slimsched.dashboard.live import Dashboard
from slimsched.serving.api import metrics
from slimsched.serving.api.express.line import unused_lines
from slimsched.serving.api.fronts.bundles import local_link
from slimsched.serving.api.fronts.fronts import Fronts
from slimsched.serving.api.grpc_server import GrpcServer, read_tls
from slimsched.serving.api.http import Cors, HttpServer, read_cors
from slimsched.serving.api.http_requests import json_page
from slimsched.serving.api.limits import read_limits, read_token
from slimsched.serving.api.metrics import Metrics, otlp_traces
from slimsched.serving.api.pages import GoalControl, GoalState, Pages, RepositoryControl, document, grpc_pages
from slimsched.serving.api.service import InferenceService, Tally
from slimsched.serving.domain.model import ModelsChanged, RatedModel
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import format_goal, format_goals
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import Engine, LocalEngine, RunLog, specs_of
from slimsched.serving.live.wire import run, spare_collector
from slimsched.serving.measure.agreement import AgreementMeter
from slimsched.serving.measure.machine import Plan, describe, most_fronts, plan_here, usable_cores
from slimsched.serving.options import EngineOptions, MachineOptions, ServeOptions
from slimsched.serving.routers.registry import check_goal, check_reach, make_router, split_goal
from slimsched.serving.scenario.catalogue import Catalogue, ModelRepository
from slimsched.serving.scenario.files import ChosenScenario, choose_scenario
from slimsched.serving.scenario.scenario import Scenario

STOP_LIMIT_S = 7.0
"""How long servers may take to end once every request has its answer."""

CLOSE_LIMIT_S = 2.0
"""How long clients may take to read their last answers."""


def serve(*models: str | Path, scenario: str | None = None, **options: Any) -> bool:
    """Serve models on this machine until told to stop, as `slim serve` does.

    Each model is a folder; without any, the shipped network is served. `scenario` is the name of a shipped
    scenario, or the path of one of your own; without it, this machine is looked at. The options are those of
    `slim serve`, by name: `goal`, `devices`, `router`, `host`, `http_port`, `grpc_port`, `token` and so on;
    see `slimsched/serving/options.py`.

    Return whether all that was accepted was answered or refused.
    """
    own = {name: options.pop(name) for name in MachineOptions.__struct_fields__ if name in options}
    served, console = ServeOptions(**options), Console(stderr=True)
    config = Path(scenario) if scenario is not None and scenario.endswith(".toml") else None
    chosen, plan = choose(
        scenario, config, [str(model) for model in models], MachineOptions(**own), served, console
    )
    return serve_chosen(chosen, served, EngineOptions(), console, plan)


def choose(
    scenario: str | None,
    config: Path | None,
    models: Sequence[str],
    machine: MachineOptions,
    served: ServeOptions,
    console: Console,
) -> tuple[ChosenScenario, Plan | None]:
    """Return the scenario to serve: the one that is named, or else that of this machine, and why."""
    check_goal(served.goal, [served.router])
    if find_spec("torch") is None:  # in the server processes, where nobody would see that it is missing
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    plan = None
    if scenario is None and config is None:
        with console.status("looking at this machine") as status:
            chosen, plan = run(plan_here(machine, models, served.goal, status.update))
        plan = plan if served.fronts is None else replace(plan, fronts=served.fronts)
    else:
        if machine != MachineOptions():
            raise ConfigError("--devices, --cores and --precision are for serving without a scenario")
        chosen = choose_scenario(scenario or "", config, models, goal=served.goal)
    check_reach([served.router], chosen.scenario.cluster)
    return chosen, plan


def serve_chosen(
    chosen: ChosenScenario,
    served: ServeOptions,
    engine: EngineOptions,
    console: Console,
    plan: Plan | None = None,
) -> bool:
    """Serve a scenario until told to stop; return whether all that was accepted was answered or refused."""

    async def work() -> bool:
        return await ServerApp(chosen, served, engine, console, plan).run()

    return run(work())


class ServerApp:
    """A cluster, the two protocols in front of it, metrics and dashboard."""

    def __init__(
        self,
        chosen: ChosenScenario,
        options: ServeOptions,
        engine: EngineOptions,
        console: Console,
        plan: Plan | None = None,
    ) -> None:
        """With a `plan`, the scenario was chosen for this machine, and people are told how."""
        limits = read_limits(options.limit or [])
        chosen = chosen.for_clients(limits.queue_s)
        scenario = self._scenario = chosen.scenario
        self._options, self._console, self._plan = options, console, plan
        self._listening = options.listening(read_token(options.token, options.token_file))
        self._tls, cors = read_tls(options.tls_cert, options.tls_key), read_cors(options.cors or ())
        self._folder = None if options.log is None else LogFolder(options.log, int(1e6 * options.log_limit))
        fronts = _front_count(options, plan)
        self._engine, self._log = _open_engine(chosen, options, engine, self._folder, writers=1 + fronts)
        self._catalogue = Catalogue(scenario, options.router)
        gateway = self._gateway = Gateway(
            scenario.cluster,
            make_router(options.router, scenario.cluster, 0, scenario.goal),
            scenario.gateway,
            first_block=self._engine.first_id,
            model_changes=self._catalogue,
        )
        tally = Tally(access_log=options.access_log)
        self._dashboard = Dashboard(
            gateway,
            options.router,
            now=lambda: self._cluster.now_s,
            phase=lambda: self._service.state,
            power_sources=lambda: self._cluster.power_sources,
        )
        look, waiting = self._dashboard.frame, lambda: self._engine.waiting
        self._metrics = Metrics(gateway, tally, options.router, frame=look, waiting=waiting, log=self._log)
        self._spans = otlp_traces(lambda: gateway.cluster) if options.otel else None
        self._agreement = AgreementMeter(scenario.cluster.models)
        self._cluster = LiveCluster(gateway, self._engine, self._observers(), self._agreement.sampler)
        models = None if options.model_repository is None else ModelRepository(options.model_repository)
        self._service = InferenceService(
            self._cluster,
            limits,
            tally=tally,
            row_bytes=0 if models is None else models.row_bytes,
            shared_memory=options.shared_memory,
            extensions=() if models is None else RepositoryControl.EXTENSIONS,
            models_changed=self._models_changed,
            announce=self._announce_regions,
        )
        state = goal_state(options, scenario)
        self._goal = GoalControl(gateway, self._cluster.set_goal, state, self._dashboard.frame)
        self._repository = self._control(models)
        self._http, self._grpc = self._make_protocols(cors)
        self._fronts = Fronts(self._service, self._cluster, self._listening, fronts) if fronts else None

    def _control(self, models: ModelRepository | None) -> RepositoryControl | None:
        """Return what loads models from a repository while requests are served, if there is one."""
        if models is None:
            return None
        if not isinstance(self._engine, LocalEngine):
            raise SlimError("--model-repository works with --engine local only; leave one of them out")
        return RepositoryControl(
            models, self._service, self._cluster, self._gateway, self._catalogue, self._engine
        )

    async def run(self) -> bool:
        """Listen, start the servers, and serve until SIGTERM or Ctrl-C; then drain. A second one ends it.

        Return whether everything that was accepted was answered or refused.
        """
        if (kept := self._goal.resume()) is not None:
            self._say(f"continuing with the goal that was set before: {kept}")
        tasks = self._keep_log()
        address = await self._listen()
        tasks.append(asyncio.create_task(self._dashboard.run()))
        tasks.append(asyncio.create_task(self._agreement.run(self._rate)))
        signals = StopSignals()
        try:
            with self._console.status(f"starting {len(self._scenario.cluster)} servers"):
                started = await signals.unless_stopped(self._service.start())
        except BaseException:
            await self._abort_protocols()
            raise
        if started:
            scaling = self._scale()
            spare_collector()
            if self._repository is not None:
                loop, again = asyncio.get_running_loop(), self._repository.load_again
                loop.add_signal_handler(signal.SIGHUP, lambda: tasks.append(loop.create_task(again())))
            self._say_ready(address)
            await signals.wait()
            self._say("draining; a second signal ends at once")
            for task in scaling:
                task.cancel()
        is_whole = await self._finish(signals, self._service.drain() if started else None)
        for task in tasks:
            task.cancel()
        if self._log is not None:
            self._log.close()
        return is_whole

    def _observers(self) -> list[Observer]:
        """Return all that follow what the gateway is told and decides, the log first."""
        observers: list[Observer] = [] if self._log is None else [self._log]
        observers += [self._metrics, self._dashboard.view, metrics.ClusterLog(self._scenario.cluster.names)]
        return observers if self._spans is None else [*observers, self._spans]

    def _make_protocols(self, cors: Cors | None) -> tuple[HttpServer, GrpcServer]:
        """Make the two servers of this process; with fronts, they answer what fronts do not know."""
        service, token, repository = self._service, self._listening.token, self._repository
        pages = Pages(
            service,
            token=token,
            pages={
                "/metrics": self._metrics.page,
                "/openapi.json": lambda: json_page(document(service)),
                "/v2/machine": lambda: json_page(self._told()),
                **self._dashboard.pages,
            },
            goal=self._goal,
            repository=repository,
            assets=self._dashboard.assets,
        )
        link = local_link(service, self._cluster)
        return (
            HttpServer(service, pages.answer, token=token, cors=cors, link=link),
            GrpcServer(service, grpc_pages(service, repository), token=token, link=link),
        )

    def _told(self) -> dict[str, Any]:
        """Return what people and programs are told of the machine, and of what models are rated by now."""
        quality, plan, lines = self._agreement.state, self._plan, unused_lines(has_tls=self._tls is not None)
        if plan is not None:
            return {"lines": describe(plan, self._scenario, lines, quality), "quality": quality, **plan.facts}
        return {"lines": [*(f"{name}: quality: {text}" for name, text in quality.items()), *lines]}

    async def _rate(self, rated: RatedModel) -> None:
        """Let the router use what a model's plans were measured to be worth."""
        change, gateway = ModelsChanged(rated=(rated,)), self._gateway
        await asyncio.to_thread(self._catalogue.prepare, gateway.cluster, change, gateway.goal)
        self._cluster.change_models(change)
        self._service.use_models()

    def _models_changed(self) -> None:
        """Tell whoever reads requests that other models are offered."""
        if self._fronts is not None:
            self._fronts.introduce()
        else:
            self._http.models_changed()
            self._grpc.models_changed()

    async def _announce_regions(self) -> None:
        """Tell fronts which regions of shared memory there are."""
        if self._fronts is not None:
            await self._fronts.announce()

    async def _listen(self) -> str:
        """Listen with both protocols; return where, in words."""
        given = self._listening
        try:
            http_port, grpc_port = await (
                self._listen_here() if self._fronts is None else self._listen_with(self._fronts)
            )
        except (OSError, RuntimeError) as error:
            raise SlimError(
                f"cannot listen at {given.host}, ports {given.http_port} and {given.grpc_port} "
                f"({error}); choose others with --http-port and --grpc-port"
            ) from None
        url = f"http{'s' if self._tls else ''}://{given.host}:{http_port}"
        names = ",".join(self._service.apis)
        return f"{url}/v2/models/{names}, gRPC at {given.host}:{grpc_port}"

    async def _listen_here(self) -> tuple[int, int]:
        """Let this process read requests itself."""
        given, (context, credentials) = self._listening, self._tls or (None, None)
        http_port = await self._http.start(given.host, given.http_port, context)
        return http_port, await self._grpc.start(given.host, given.grpc_port, credentials)

    async def _listen_with(self, fronts: Fronts) -> tuple[int, int]:
        """Let front processes read requests; they ask this process what they do not know."""
        await self._http.start_unix(fronts.http_socket)
        await self._grpc.start_unix(fronts.grpc_socket)
        return await fronts.start()

    def _keep_log(self) -> list[asyncio.Task[None]]:
        """Start writing the event log to disk, if there is one."""
        if self._log is None or self._folder is None:
            return []
        self._say(f"event logs: {self._folder.run}")
        return [asyncio.create_task(self._log.keep(self._folder.make_room))]

    def _scale(self) -> list[asyncio.Task[None]]:
        """Let the autoscaler start and stop servers, where they run here; on Ray the roster does."""
        if self._scenario.autoscale is None or not isinstance(self._engine, LocalEngine):
            return []
        scaling = self._cluster.scale_forever(self._scenario.autoscale, self._engine)
        return [asyncio.create_task(scaling)]

    async def _finish(self, signals: "StopSignals", drain: Coroutine[None, None, None] | None) -> bool:
        """Answer what was accepted and stop, in a limited time whatever clients and servers do."""
        within_s = self._service.limits.drain_s + STOP_LIMIT_S
        is_whole = drain is None or await signals.unless_at_once(drain, within_s)
        if not is_whole:
            self._say("ending at once; not all requests were answered")
            self._engine.end()
        if not await signals.unless_at_once(self._close_protocols(), CLOSE_LIMIT_S):
            await self._abort_protocols()
        return is_whole

    async def _close_protocols(self) -> None:
        if self._fronts is not None:
            await self._fronts.stop()
        await asyncio.gather(self._http.stop(), self._grpc.stop())

    async def _abort_protocols(self) -> None:
        if self._fronts is not None:
            self._fronts.end()
        self._http.abort()
        await self._grpc.abort()

    def _say_ready(self, address: str) -> None:
        """Say where the server is and which goal it follows."""
        goal = self._goal.goal
        aim = "" if goal is None else f", goal: {format_goals(goal)}"
        self._say(f"ready: {address}, router {split_goal(self._options.router)[0]}{aim}")
        if note := self._goal.note:
            self._say(note)
        self._say(f"dashboard: {address.partition('/v2')[0]}/")
        for line in self._told()["lines"]:
            self._say(line)

    def _say(self, text: str) -> None:
        """Tell people on the console, or the log where the console is quiet."""
        self._console.print(text, soft_wrap=True)
        if self._console.quiet:
            logging.getLogger("slim.serve").info(text)


def _front_count(options: ServeOptions, plan: Plan | None) -> int:
    """Return how many processes read requests: as people say, as was chosen here, or by the cores."""
    if options.fronts is not None:
        return options.fronts
    return most_fronts(len(usable_cores()[0])) if plan is None else plan.fronts


def _open_engine(
    chosen: ChosenScenario,
    options: ServeOptions,
    engine: EngineOptions,
    folder: LogFolder | None,
    *,
    writers: int,
) -> tuple[Engine, RunLog | None]:
    """Open the engine for a scenario's servers, which start when the engine does, and the gateway's log.

    `writers` processes put inputs into the memory that local servers share. With a folder the run is logged
    there. Servers on Ray write no logs: they may be on other machines and serve several gateways, each of
    which logs all that it was told and decided.
    """
    scenario, specs = chosen.scenario, specs_of(chosen.scenario)
    setting = chosen.setting(options.router, for_clients=True)
    if engine.engine == "ray":
        from slimsched.serving.ray.engine import join

        joined = join(specs, address=engine.address, namespace=engine.attach, autoscale=scenario.autoscale)
        return joined, _open_log(replace(setting, first_id=joined.first_id), folder, servers=0)
    zero_s = monotonic()
    log = _open_log(setting, folder, servers=len(specs))
    at_first = None if scenario.autoscale is None else scenario.autoscale.min
    return LocalEngine(specs, at_first=at_first, writers=writers, clock_zero_s=zero_s, log=log), log


def _open_log(setting: Any, folder: LogFolder | None, *, servers: int) -> RunLog | None:
    if folder is None:
        return None
    return RunLog(folder.run, setting, servers, limit_bytes=folder.limit_bytes)


def goal_state(options: ServeOptions, scenario: Scenario) -> GoalState | None:
    """Open the file that keeps a goal set while running; it counts for the same router and goal only."""
    if options.state is None:
        return None
    goal = "" if scenario.goal is None else f" [{format_goal(scenario.goal)}]"
    own = {} if scenario.goal is None else scenario.goal.by_model
    goal += "".join(f" {model}[{format_goal(one)}]" for model, one in own.items())
    return GoalState(options.state, options.router + goal)


class StopSignals:
    """SIGTERM and Ctrl-C: the first signal asks to finish, the second to end at once."""

    def __init__(self) -> None:
        self._stop, self._at_once = asyncio.Event(), asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, self._hear)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._stop.wait()

    async def unless_stopped(self, work: Coroutine[None, None, None]) -> bool:
        """Do the work, or break it off at the first signal; return whether it was done."""
        return await _unless(self._stop, work)

    async def unless_at_once(self, work: Coroutine[None, None, None], within_s: float) -> bool:
        """Do the work, or break it off at the second signal or after a time; return whether it was done."""
        return await _unless(self._at_once, work, within_s)

    def _hear(self) -> None:
        (self._at_once if self._stop.is_set() else self._stop).set()


async def _unless(
    told: asyncio.Event, work: Coroutine[None, None, None], within_s: float | None = None
) -> bool:
    task, waiting = asyncio.ensure_future(work), asyncio.ensure_future(told.wait())
    await asyncio.wait([task, waiting], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    await task
    return True
