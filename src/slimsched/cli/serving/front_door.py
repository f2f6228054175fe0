"""Everything behind `slim serve`: gateway and servers, the two protocols, metrics and the dashboard."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Coroutine
from pathlib import Path

from rich.console import Console

from slimsched.cli.serving.engine import EngineOptions, ServeOptions, open_engine
from slimsched.cli.serving.scenario import Choice
from slimsched.core.config import SlimError
from slimsched.core.log import LogFolder, Observer
from slimsched.dashboard.live import Dashboard
from slimsched.serving.api import metrics
from slimsched.serving.api.express.line import unused_lines
from slimsched.serving.api.fronts.bundles import local_link
from slimsched.serving.api.fronts.fronts import Fronts, FrontSpec, fitting_fronts
from slimsched.serving.api.grpc_server import GrpcServer, read_tls
from slimsched.serving.api.http import HttpServer, read_cors
from slimsched.serving.api.http_requests import json_page
from slimsched.serving.api.limits import read_limits, read_token
from slimsched.serving.api.metrics import Metrics, otlp_traces
from slimsched.serving.api.pages import GoalControl, GoalState, GrpcPages, Pages, RepositoryControl, document
from slimsched.serving.api.service import InferenceService
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import format_goal, format_goals
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.routers.guard import limits_of
from slimsched.serving.routers.registry import make_router, split_goal
from slimsched.serving.scenario.catalogue import Catalogue, ModelRepository
from slimsched.serving.scenario.scenario import Scenario

# -- SIGTERM and Ctrl-C: the first signal asks to finish, the second to end at once.


class StopSignals:
    """Listens to the signals of this process."""

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


STOP_LIMIT_S = 7.0
"""How long servers may take to end once every request has its answer."""

CLOSE_LIMIT_S = 2.0
"""How long clients may take to read their last answers."""


class FrontDoor:
    """A cluster that serves until it is told to stop."""

    def __init__(
        self, chosen: Choice, engine: EngineOptions, options: ServeOptions, console: Console
    ) -> None:
        limits = read_limits(options.limit or [])
        chosen = chosen.for_clients(limits.queue_s)
        scenario = chosen.scenario
        self._options, self._console, self._names = options, console, scenario.cluster.names
        self._tls, self._cors = read_tls(options.tls_cert, options.tls_key), read_cors(options.cors or ())
        self._token = read_token(options.token, options.token_file)
        self._folder = log_folder(options.log, options.log_limit)
        setting = chosen.setting(options.router, for_clients=True)
        fronts = fitting_fronts() if options.fronts is None else options.fronts
        opened = open_engine(engine, scenario, setting, self._folder, writers=1 + fronts)
        self._autoscale, self._fleet, self._engine = scenario.autoscale, opened.fleet, opened.engine
        router = make_router(options.router, scenario.cluster, 0, scenario.goal)
        catalogue = Catalogue(scenario, options.router)
        gateway = Gateway(
            scenario.cluster, router, scenario.gateway, first_block=opened.first_id, growth=catalogue
        )
        opened.watch(gateway)
        self._traces = otlp_traces(lambda: gateway.cluster) if options.otel else None
        observers: list[Observer] = []
        self._cluster = LiveCluster(
            gateway, opened.engine, observers, clock_zero_s=opened.clock_zero_s, first_id=opened.first_id
        )
        folder = None if options.model_repository is None else ModelRepository(options.model_repository)
        self._service = InferenceService(
            self._cluster,
            limits,
            row_bytes=0 if folder is None else folder.row_bytes,
            shared_memory=options.shared_memory,
        )
        self._service.tally.access_log = options.access_log
        self._metrics = Metrics(
            gateway,
            self._service.tally,
            self._cluster.power_source,
            self._cluster.waits_for_core,
            options.router,
        )
        self._dashboard = self._open_dashboard(scenario)
        self._dashboard.view.current = lambda: gateway.cluster
        self._dashboard.view.ask(gateway.census)
        self._dashboard.view.limits = lambda: limits_of(
            gateway.router, [model.name for model in gateway.cluster.active]
        )
        self._repository: RepositoryControl | None = None
        if folder is not None:
            self._repository = RepositoryControl(
                folder, self._service, self._cluster, gateway, catalogue, opened.engine
            )
            self._service.extensions += ["model_repository", "model_repository(unload_dependents)"]
        self._goal = GoalControl(gateway, self._cluster.set_goal, goal_state(options, scenario))
        self._open_protocols()
        self._fronts = self._open_fronts(fronts) if fronts else None
        self._log = self._metrics.log = opened.log
        observers += [opened.log] if opened.log is not None else []
        observers += [self._metrics, self._dashboard.view, metrics.ClusterLog(self._names)]
        observers += [self._traces.spans] if self._traces is not None else []

    async def run(self) -> bool:
        """Listen, start the servers, and serve until SIGTERM or Ctrl-C; then drain. A second one ends it.

        Return whether everything that was accepted was answered or refused.
        """
        if (kept := self._goal.resume()) is not None:
            self._say(f"continuing with the goal that was set before: {kept}")
        tasks = self._keep_log()
        address = await self._listen()
        tasks.append(asyncio.create_task(self._dashboard.run()))
        signals = StopSignals()
        try:
            with self._console.status(f"starting {len(self._names)} servers"):
                started = await signals.unless_stopped(self._service.start())
        except BaseException:
            await self._abort_protocols()
            raise
        if started:
            scaling = self._scale()
            _tune_collector()
            self._say(f"ready: {address}, router {split_goal(self._options.router)[0]}{self._aim()}")
            self._say(f"dashboard: {address.partition('/v2')[0]}/")
            for why in unused_lines(has_tls=self._tls is not None):
                self._say(why)
            await signals.wait()
            self._say("draining; a second signal ends at once")
            for task in scaling:
                task.cancel()
        is_whole = await self._finish(signals, self._service.drain() if started else None)
        for task in tasks:
            task.cancel()
        if self._log is not None:
            self._log.close()
        if started and self._traces is not None:
            self._traces.close()
        return is_whole

    async def _finish(self, signals: StopSignals, drain: Coroutine[None, None, None] | None) -> bool:
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
            self._fronts.abort()
        self._http.abort()
        await self._grpc.abort()

    def _keep_log(self) -> list[asyncio.Task[None]]:
        """Start writing the event log to disk, if there is one."""
        if self._log is None or self._folder is None:
            return []
        self._say(f"event logs: {self._folder.run}")
        return [asyncio.create_task(self._log.keep(self._folder.make_room))]

    def _aim(self) -> str:
        """Say which goal is followed now."""
        goal = self._goal.goal
        return "" if goal is None else f", goal: {format_goals(goal)}"

    def _scale(self) -> list[asyncio.Task[None]]:
        """Let the autoscaler start and stop servers, where the scenario has one and they run here."""
        if self._autoscale is None or self._fleet is None:
            return []
        return [asyncio.create_task(self._cluster.scale_forever(self._autoscale, self._fleet))]

    def _open_dashboard(self, scenario: Scenario) -> Dashboard:
        return Dashboard(
            scenario.cluster,
            self._options.router,
            now=lambda: self._cluster.now_s,
            phase=lambda: self._service.state,
            power_sources=lambda: self._cluster.power_sources,
        )

    def _open_protocols(self) -> None:
        pages = {
            "/metrics": self._metrics.page,
            "/openapi.json": lambda: json_page(document(self._service)),
            **self._dashboard.pages,
        }
        answers = Pages(
            self._service,
            token=self._token,
            pages=pages,
            goal=self._goal,
            repository=self._repository,
            assets=self._dashboard.assets,
        )
        link = local_link(self._service, self._cluster)
        self._http = HttpServer(self._service, answers.answer, token=self._token, cors=self._cors, link=link)
        methods = GrpcPages(self._service, self._repository).methods
        self._grpc = GrpcServer(self._service, methods, token=self._token, link=link)

    def _open_fronts(self, fronts: int) -> Fronts:
        options = self._options
        spec = FrontSpec(
            index=0,
            secret="",
            calls_socket="",
            http_socket="",
            grpc_socket="",
            fronts=fronts,
            host=options.host,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            token=self._token,
            tls_cert=str(options.tls_cert or ""),
            tls_key=str(options.tls_key or ""),
            cors=options.cors or (),
            access_log=options.access_log,
            log_format=options.log_format,
            log_level=os.environ.get("SLIM_LOG", "INFO"),
        )
        return Fronts(self._service, self._cluster, spec)

    async def _listen(self) -> str:
        """Listen with both protocols; return where, in words."""
        options = self._options
        try:
            http_port, grpc_port = await (
                self._listen_here() if self._fronts is None else self._listen_with(self._fronts)
            )
        except (OSError, RuntimeError) as error:
            raise SlimError(
                f"cannot listen at {options.host}, ports {options.http_port} and {options.grpc_port} "
                f"({error}); choose others with --http-port and --grpc-port"
            ) from None
        url = f"http{'s' if self._tls else ''}://{options.host}:{http_port}"
        names = ",".join(face.name for face in self._service.faces)
        return f"{url}/v2/models/{names}, gRPC at {options.host}:{grpc_port}"

    async def _listen_here(self) -> tuple[int, int]:
        """Let this process read requests itself."""
        options, tls = self._options, self._tls
        self._service.when_models_change += [self._http.models_changed, self._grpc.models_changed]
        http_port = await self._http.start(options.host, options.http_port, tls.context if tls else None)
        credentials = tls.grpc_credentials() if tls else None
        return http_port, await self._grpc.start(options.host, options.grpc_port, credentials)

    async def _listen_with(self, fronts: Fronts) -> tuple[int, int]:
        """Let front processes read requests; they ask this process what they do not know."""
        await self._http.start_unix(fronts.http_socket)
        await self._grpc.start_unix(fronts.grpc_socket)
        return await fronts.start()

    def _say(self, text: str) -> None:
        """Tell people on the console, or the log where the console is quiet."""
        self._console.print(text, soft_wrap=True)
        if self._console.quiet:
            logging.getLogger("slim.serve").info(text)


def log_folder(folder: Path | None, limit_mb: float) -> LogFolder | None:
    """Make the folder of this start's event logs; None if none is asked for."""
    if folder is None:
        return None
    return LogFolder(folder, int(1e6 * limit_mb))


def goal_state(options: ServeOptions, scenario: Scenario) -> GoalState | None:
    """Open the file that keeps a goal set while running; it counts for the same router and goal only."""
    if options.state is None:
        return None
    goal = "" if scenario.goal is None else f" [{format_goal(scenario.goal)}]"
    own = {} if scenario.goal is None else scenario.goal.by_model
    goal += "".join(f" {model}[{format_goal(one)}]" for model, one in own.items())
    return GoalState(options.state, options.router + goal)


def _tune_collector() -> None:
    """Let Python's garbage collector leave alone what is there now and stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # requests leave no cycles behind
