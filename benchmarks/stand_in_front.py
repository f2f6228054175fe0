"""A front process without a port: real calls to the gateway, always the same number under way."""

import asyncio
import os
import sys

import msgspec
import numpy as np

from slimsched.serving.api.calls import Call, ModelApi
from slimsched.serving.api.fronts.bundles import FrontListens, FrontReady, ToFront
from slimsched.serving.api.fronts.front import FrontSpec, RemoteCallHandler, read_front_spec
from slimsched.serving.api.limits import RefusalError
from slimsched.serving.domain.request import Terms
from slimsched.serving.live.wire import FrameConnection, run

SETTING = "SLIM_STAND_IN"
"""The environment variable that says what to send: a `Sent` in JSON."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What all fronts together send, and the file where each of them counts the calls answered and failed."""

    images: int
    calls: int
    plan: str
    counts: str
    deadline_s: float = 1e18


async def _ask_forever(link: RemoteCallHandler, api: ModelApi, sent: Sent, counts: np.ndarray) -> None:
    """Send one call after the other."""
    arena = link.arena
    size = sent.images * api.spec.row_bytes
    room = None if arena is None else arena.take(size)
    inputs = bytes(size) if room is None else room
    terms = Terms(plan=api.plan(sent.plan) if sent.plan else -1, deadline_s=sent.deadline_s)
    call = Call(id="", api=api, inputs=(inputs,), count=sent.images, terms=terms, outputs=())
    while True:
        try:
            await link.infer(call)
            counts[0] += 1
        except RefusalError:
            counts[1] += 1
            await asyncio.sleep(0.01)


async def _serve(spec: FrontSpec, sent: Sent) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()

    def received(connection: FrameConnection, message: ToFront) -> None:
        link.received(connection, message)

    _, gateway = await loop.create_unix_connection(
        lambda: FrameConnection(ToFront, received, lambda _: gone.set()), spec.calls_socket
    )
    link = RemoteCallHandler(gateway, spec.open_arena())
    gateway.send(FrontReady(index=spec.index, life=spec.life, secret=spec.secret))
    await link.introduced.wait()
    given = spec.listening
    gateway.send(FrontListens(http_port=given.http_port, grpc_port=given.grpc_port))
    counts = np.memmap(sent.counts, np.uint64, "r+", shape=(spec.fronts, 2))[spec.index]
    share = [number for number in range(sent.calls) if number % spec.fronts == spec.index]
    api = link.api("slimresnet")
    work = [link.report_forever(), *(_ask_forever(link, api, sent, counts) for _ in share)]
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.wait([asyncio.ensure_future(gone.wait()), *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def main() -> None:
    """Send what the environment says."""
    spec = read_front_spec(sys.stdin.buffer.read())
    run(_serve(spec, msgspec.json.decode(os.environ[SETTING], type=Sent)))


if __name__ == "__main__":
    main()
