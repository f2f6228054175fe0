"""The Ray engine: servers are actors that Ray places and restarts; gateways connect to their sockets.

Several gateways can share the servers of one namespace. Each gateway detects by itself which servers are up.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from time import monotonic, time
from typing import Any, TypeVar
from uuid import uuid4

from slimsched.core.config import SlimError
from slimsched.serving.live.engine import EngineListener
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.processes import Heartbeat, beat_forever
from slimsched.serving.live.wire import Drain, FrameConnection, Ready, ServerSpec, ToServer
from slimsched.serving.ray.messages import (
    GATEWAY_BITS,
    ROSTER,
    FromActor,
    Hello,
    Leaving,
    Membership,
    encode,
    needs,
    new_charter,
    server_name,
)
from slimsched.serving.routers.autoscaler import AutoscaleOptions

# -- Connects to a Ray cluster, or starts one.

OBJECT_STORE_BYTES = 96 * 2**20
"""Size for a Ray that we start; activations do not go through the object store."""


ON_THIS_MACHINE_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Set to 0, Ray uses the loopback address on every system; by itself it does so on Windows and macOS only."""


class RayError(SlimError):
    """Ray is not installed, or not reachable at the given address."""


def connect(address: str | None, namespace: str, *, cpus: int = 0) -> None:
    """Join the Ray at an address ("auto": this machine's), or start one here with at least `cpus` CPUs.

    A Ray that is started here listens on 127.0.0.1 only. One that is joined listens where its operator said.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.setdefault(ON_THIS_MACHINE_ONLY, "0")  # Ray reads it when it is imported
    try:
        import ray
    except ImportError:
        raise RayError(
            "the engine 'ray' needs Ray; install it with pip install 'slim-scheduler[ray]'"
        ) from None
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own = {
        "num_cpus": max(cpus, os.cpu_count() or 1),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    try:
        ray.init(
            address=address or "local",
            namespace=namespace or None,
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({} if address else own),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"at '{address}'" if address else "on this machine"
        raise RayError(
            f"no Ray {where} ({str(error).splitlines()[0]}); start one with ray start --head, "
            "or leave --address out to start one for this run"
        ) from None


# -- A standard-library executor that runs calls as Ray tasks, so that sweeps need no Ray code.

T = TypeVar("T")


class RayTasks(Executor):
    """Runs each call as a one-CPU task on any free CPU of the cluster."""

    def __init__(self, address: str | None = None) -> None:
        connect(address, "")
        import ray

        self._call = ray.remote(_call)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run one call as a task."""
        future: Future[T] = self._call.remote(fn, args, kwargs).future()
        return future


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)


log = logging.getLogger("slim.ray")

START_LIMIT_S = 120.0
PATIENCE_S = 5.0
"""How long a start waits for more servers once some are up. Others join when Ray finds a node for them."""

REPORT_S = 0.25
RETRY_S = 0.2
CONNECT_LIMIT_S = 5.0
"""How long it may take to connect to a server."""


def join(
    specs: Sequence[ServerSpec],
    *,
    address: str | None = None,
    namespace: str = "",
    autoscale: AutoscaleOptions | None = None,
) -> "RayEngine":
    """Join the servers of a namespace as a gateway, and start them if there are none.

    Without a namespace, start servers in a new one."""
    namespace = namespace or f"slim-{uuid4().hex[:8]}"
    connect(address, namespace, cpus=sum(spec.host.threads for spec in specs))
    import ray

    from slimsched.serving.ray.roster import Roster

    charter = new_charter(specs, autoscale)
    roster = (
        ray.remote(Roster)
        .options(
            name=ROSTER,
            namespace=namespace,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
        )
        .remote(encode(charter), namespace)
    )
    given = ray.get(roster.join.remote(charter.names), timeout=START_LIMIT_S)
    if isinstance(given, str):
        raise RayError(f"cannot join namespace '{namespace}': {given}; use the same scenario")
    return RayEngine(specs, roster, given, namespace)


class RayEngine:
    """Keeps a connection to every server that should run, and reports which servers come and go."""

    def __init__(
        self, specs: Sequence[ServerSpec], roster: Any, membership: Membership, namespace: str
    ) -> None:
        self.namespace = namespace
        self.arena: InputArena | None = None  # servers may be on other machines
        self.first_id = membership.number << GATEWAY_BITS
        self.clock_zero_s = monotonic() - (time() - membership.epoch_s)
        self.waiting: Sequence[int] = ()  # nobody knows, of another machine
        self._specs, self._roster, self._membership = specs, roster, membership
        self._wanted: set[int] = set()
        self._connections: dict[int, FrameConnection] = {}
        self._addresses: dict[int, str] = {}
        self._pids: dict[int, int] = {}
        self._calls: dict[int, FrameConnection] = {}  # open connections, also to servers not ready yet
        self._heartbeat = Heartbeat()
        self._suspected: set[int] = set()  # silent servers that the roster has not been told of
        self._ended: dict[int, str] = {}  # servers that Ray gave up, and why
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = self._misses_roster = False

    async def start(self, listener: EngineListener) -> None:
        """Return when all servers are ready, or all that Ray found a node for."""
        self._listener = listener
        await self._report()
        work = [self._report_forever(), beat_forever(self._beat, log), *map(self._keep, self._specs)]
        self._tasks = [asyncio.create_task(one) for one in work]
        began_s = changed_s = monotonic()
        up = 0
        while up < len(self._wanted):
            await asyncio.sleep(0.02)
            now_s = monotonic()
            if len(self._connections) != up:
                up, changed_s = len(self._connections), now_s
            if up and now_s - changed_s > PATIENCE_S:
                log.warning("going on without %s", self._missing())
                return
            if not up and now_s - began_s > START_LIMIT_S:
                await self.stop(drain=False)
                raise SlimError(f"no server was up after {START_LIMIT_S:g} s: {self._missing()}")

    def send(self, server: int, message: ToServer) -> None:
        """Send without waiting."""
        connection = self._connections.get(server)
        if connection is not None:
            connection.send(message)

    def peer_address(self, server: int) -> str:
        """Return the address of a server's socket."""
        return self._addresses.get(server, "")

    def pid(self, server: int) -> int:
        """Return the process id of a server, on its own node."""
        return self._pids[server]

    def lose_sight(self, server: int) -> None:
        """Break the connection to a server, as a network fault would; the engine reconnects."""
        if (connection := self._calls.get(server)) is not None:
            connection.abort()
            self._gone(server, connection)

    def end(self) -> None:
        """Leave without a word; the roster stops the servers when no gateway has reported for a while."""

    async def stop(self, *, drain: bool = True) -> None:
        """Leave the cluster; the last gateway that leaves stops the servers."""
        import ray
        from ray.exceptions import RayError as RaysError

        self._stopping = True
        for task in self._tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close()
        with suppress(RaysError, TimeoutError):
            async with asyncio.timeout(10.0):
                if await self._roster.leave.remote(self._membership.number):
                    ray.kill(self._roster)

    async def _keep(self, spec: ServerSpec) -> None:
        """Connect to a server while it should run, and reconnect after a loss."""
        from ray.exceptions import ActorDiedError
        from ray.exceptions import RayError as RaysError

        while True:
            if spec.index in self._wanted:
                try:
                    actor = await asyncio.to_thread(self._actor, spec.index)
                    await self._visit(spec.index, await actor.address.remote())
                except ActorDiedError as error:
                    why = str(error).strip().splitlines()[-1].strip()
                    if self._ended.get(spec.index) != why:
                        log.warning("%s ended: %s", spec.name, why)
                    self._ended[spec.index] = why
                except (RaysError, OSError, ValueError):
                    pass  # not started yet, or restarting
            await asyncio.sleep(RETRY_S)

    async def _visit(self, server: int, address: str) -> None:
        """Talk to a server until the connection is lost."""
        lost = asyncio.Event()
        host, _, port = address.rpartition(":")
        async with asyncio.timeout(CONNECT_LIMIT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: FrameConnection(
                    FromActor, lambda to, message: self._received(server, to, message), lambda _: lost.set()
                ),
                host,
                int(port),
            )
        self._addresses[server], self._calls[server] = address, connection
        connection.send(Hello(secret=self._membership.secret, gateway=self._membership.number))
        await lost.wait()
        self._gone(server, connection)

    def _gone(self, server: int, connection: FrameConnection) -> None:
        """A connection is closed: say once that its server is down."""
        if self._calls.get(server) is connection:
            del self._calls[server]
        if self._connections.get(server) is connection:
            del self._connections[server]
            if not self._stopping:
                self._listener.server_down(server)

    def _received(self, server: int, connection: FrameConnection, message: FromActor) -> None:
        if self._calls.get(server) is not connection:
            return  # it was given up: its work is done elsewhere
        if isinstance(message, Ready):
            self._pids[server] = message.pid
            self._connections[server] = connection
            self._ended.pop(server, None)
            self._listener.server_up(server)
        elif isinstance(message, Leaving):
            self._listener.server_leaving(server)
            connection.send(Drain())
        else:
            self._listener.received(server, message)

    async def _report_forever(self) -> None:
        """Report to the roster and learn which servers should run."""
        while True:
            await asyncio.sleep(REPORT_S)
            await self._report()

    def _beat(self) -> None:
        """Hang up on silent servers, and let the roster replace those that it finds silent too."""
        for server in self._heartbeat.beat(self._calls):
            log.warning("%s did not answer", self._specs[server].name)
            self._suspected.add(server)
            self.lose_sight(server)

    async def _report(self) -> None:
        from ray.exceptions import RayError as RaysError

        try:
            async with asyncio.timeout(PATIENCE_S):
                up = sorted(self._connections)
                number, ended = self._membership.number, sorted(self._ended)
                suspected = sorted(self._suspected)
                wanted = await self._roster.report.remote(number, self._listener.load(), up, ended, suspected)
                self._wanted = set(wanted)
                self._suspected.difference_update(suspected)
            self._misses_roster = False
        except (RaysError, TimeoutError) as error:
            if not self._misses_roster:
                log.warning("the roster cannot be reached (%r); the known servers are used meanwhile", error)
            self._misses_roster = True

    def _actor(self, server: int) -> Any:
        import ray

        return ray.get_actor(server_name(self._specs[server].name), self.namespace)

    def _missing(self) -> str:
        return "; ".join(
            f"{spec.name} ({self._ended.get(spec.index) or f'needs a node with {needs(spec.host)}'})"
            for spec in self._specs
            if spec.index in self._wanted and spec.index not in self._connections
        )
