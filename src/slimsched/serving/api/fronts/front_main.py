"""A front process: reads requests, hands them to the gateway as calls, and writes the answers.

Several of them listen at one port, and the system spreads connections over them. The process ends when the
connection to its gateway closes, so nothing is left running.
"""

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path

from slimsched.serving.api.ciphers import CIPHERS

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", CIPHERS)

import msgspec

from slimsched.serving.api import metrics
from slimsched.serving.api.fronts.bundles import FrontListens, FrontReady, ToFront
from slimsched.serving.api.fronts.front import FrontLink, GrpcForwarding, HttpForwarding
from slimsched.serving.api.fronts.fronts import FrontSpec
from slimsched.serving.api.grpc_server import GrpcServer, read_tls
from slimsched.serving.api.http import HttpServer, read_cors
from slimsched.serving.live.memory import InputArena
from slimsched.serving.live.wire import FrameConnection, run


def main() -> None:
    """Serve as the spec on standard input says."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when to stop
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=FrontSpec)
    metrics.set_up(spec.log_format, spec.log_level)
    run(_serve(spec))


def _arena(spec: FrontSpec) -> InputArena | None:
    """Open this front's part of the memory for large inputs."""
    if not spec.arena:
        return None
    return InputArena(Path(spec.arena), part=1 + spec.index, parts=1 + spec.fronts)


async def _serve(spec: FrontSpec) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    try:
        link = FrontLink(_arena(spec), shared_memory=spec.shared_memory)
        link.tally.access_log = spec.access_log
        _, gateway = await loop.create_unix_connection(
            lambda: FrameConnection(ToFront, link.received, lambda _: gone.set()), spec.calls_socket
        )
    except (FileNotFoundError, ConnectionRefusedError):  # the gateway ended while this process started
        return
    link.use(gateway)
    gateway.send(FrontReady(front=spec.index, life=spec.life, secret=spec.secret))
    await _first(link.introduced, gone)
    if gone.is_set():
        return
    forwarding = GrpcForwarding(spec.grpc_socket)
    others = HttpForwarding(spec.http_socket, link.report).answer
    cors = read_cors(spec.cors)
    http = HttpServer(link, others, token=spec.token, cors=cors, link=link.bundles)
    rpc = GrpcServer(link, forwarding.methods, token=spec.token, link=link.bundles)
    link.when_models_change += [http.models_changed, rpc.models_changed]
    tls = read_tls(_path(spec.tls_cert), _path(spec.tls_key))
    shares_port = spec.fronts > 1
    http_port = await http.start(
        spec.host, spec.http_port, tls.context if tls else None, shares_port=shares_port
    )
    grpc_port = await rpc.start(
        spec.host, spec.grpc_port, tls.grpc_credentials() if tls else None, shares_port=shares_port
    )
    gateway.send(FrontListens(http_port=http_port, grpc_port=grpc_port))
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # requests leave no cycles behind
    reporting = asyncio.create_task(link.report_forever())
    await _first(link.drained, gone)
    reporting.cancel()
    if gone.is_set():
        http.abort()
        await rpc.abort()
    else:
        await asyncio.gather(http.stop(), rpc.stop())
        await forwarding.close()
        link.report()
        gateway.close()
        await gone.wait()


async def _first(*events: asyncio.Event) -> None:
    """Wait for any of these events."""
    tasks = [asyncio.ensure_future(one.wait()) for one in events]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


def _path(text: str) -> Path | None:
    return Path(text) if text else None


if __name__ == "__main__":
    main()
