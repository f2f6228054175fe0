"""A server process: reads its spec from standard input, warms up, reports ready, serves until drained.

The process ends when the connection to its gateway closes, so nothing is left running.
"""

import asyncio
import gc
import os
import signal
import sys
from contextlib import ExitStack

import msgspec

from slimsched.core.config import SlimError
from slimsched.core.log import LogWriter
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.live.executor import Executor
from slimsched.serving.live.processes import keep_server_log, open_server_log
from slimsched.serving.live.sensors import open_meter, open_sensor
from slimsched.serving.live.server import LiveServer, make_executor, make_peers, read_models, touch, warm_up
from slimsched.serving.live.wire import CANNOT_START, FrameConnection, Ready, ServerSpec, ToServer, run


def main() -> None:
    """Serve as the spec on standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=ServerSpec)
    if hasattr(os, "sched_setaffinity") and (cores := os.sched_getaffinity(0) & set(spec.host.cores)):
        os.sched_setaffinity(0, cores)
    try:
        models, profile = read_models(spec)
        executor = make_executor(spec, models)
        warm_up(executor, models, spec.scheduler.batch_limit)
    except SlimError as error:
        print(f"slim: server {spec.name}: {error}", file=sys.stderr)
        sys.exit(CANNOT_START)
    gc.collect()
    gc.freeze()  # what is here now stays: no collection needs to look at it again
    with ExitStack() as stack:
        log = open_server_log(spec)
        if log is not None:
            stack.enter_context(log)
        run(_serve(spec, executor, log, models, profile))


async def _serve(
    spec: ServerSpec,
    executor: Executor,
    log: LogWriter | None,
    models: list[ServedModel],
    profile: Profile,
) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    meter = open_meter(spec.host.kind, profile.idle_w, spec.host.gpu)
    peers = make_peers(spec)

    def received(_: FrameConnection, message: ToServer) -> None:
        server.receive(message)

    _, gateway = await loop.create_unix_connection(
        lambda: FrameConnection(ToServer, received, lambda _: gone.set()), spec.gateway_socket
    )
    observers = () if log is None else (log,)
    sensor = open_sensor(spec.sensors, spec.host)
    server = LiveServer(spec, models, profile, executor, meter, peers, gateway.send, observers, sensor)
    keeping = None if log is None else loop.create_task(keep_server_log(log, spec.name))
    async with await peers.listen(spec.own_socket, server.surrender):
        await server.start()
        touch(executor, models, server.scheduler.fleet.instances())
        gateway.send(
            Ready(
                server=spec.index,
                pid=os.getpid(),
                models=server.models,
                life=spec.life,
                secret=spec.secret,
            )
        )
        work = [gone.wait(), server.sample_forever(), server.drained.wait()]
        tasks = [asyncio.ensure_future(one) for one in work]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        gateway.close()
        await gone.wait()  # so that the last words are said
        for task in (*pending, *([keeping] if keeping is not None else [])):
            task.cancel()
        for task in done:
            task.result()


if __name__ == "__main__":
    main()
