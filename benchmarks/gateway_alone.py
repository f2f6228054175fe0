"""Processor time of the gateway per call, without other processes: for comparing two versions of its code.

    python benchmarks/gateway_alone.py [--images 1 8 64] [--rounds 5] [--source OTHER/src] [--profile]

What fronts and servers send is written and read as on sockets, but in this process and outside of the
measurement. The clock moves by the time of a batch, so every run decides the same. `gateway_cpu.py` measures
all of the process, with sockets.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

HERE = Path(__file__).parent
LATE = 0.5
"""How often a front sends its next calls only after another batch, so that calls of several fronts mix."""

FRONTS, BATCH, BATCH_S = 6, 256, 0.0011
UNDER_WAY = {1: 256, 8: 128, 64: 48}
PROFILE = cProfile.Profile()
ROW_BYTES, OUTPUT_BYTES = 3072, 400


class Wire:
    """The transport of a connection: keeps what is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def is_closing(self) -> bool:
        """It never is."""
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        """There are none."""

    def write(self, data: bytes) -> None:
        """Keep what the gateway sends."""
        self.data += data

    def take(self) -> list[bytes]:
        """Return the messages sent since the last time."""
        found, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 4], "little")
            found.append(bytes(self.data[at + 4 : at + 4 + size]))
            at += 4 + size
        self.data.clear()
        return found


def frame(message: msgspec.Struct) -> bytes:
    """Write a message as it travels."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "little") + body


class Clock:
    """The time that the gateway sees."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Server:
    """Runs what it was sent in batches, oldest first."""

    def __init__(self, index: int, connection: object, wire: Wire) -> None:
        self.connection, self.wire, self._index = connection, wire, index
        self._queue: deque[object] = deque()

    def batch(self) -> bytes | None:
        """Take what has come, and return the report of the next batch, if there is one."""
        from slimsched.serving.gateway.messages import SegmentFinished
        from slimsched.serving.live.wire import BatchDone, TakeBlock, ToServer

        for raw in self.wire.take():
            message = msgspec.msgpack.decode(raw, type=ToServer)
            if isinstance(message, TakeBlock):
                self._queue.append(message.block)
        blocks, room = [], BATCH
        while self._queue and room:
            block = self._queue.popleft()
            if block.examples > room:
                block, rest = block.split(room)
                self._queue.appendleft(rest)
            blocks.append(block)
            room -= block.examples
        if not blocks:
            return None
        finished = SegmentFinished(
            server=self._index,
            choice=blocks[0].key.choice,
            blocks=tuple(blocks),
            ahead=blocks[0].key.ahead,
            size=BATCH - room,
            finished_s=0.0,
            busy_s=0.0017,
            energy_j=0.3,
            queue_s=(0.001,) * len(blocks),
            legs_s=(0.0004,) * 4,
        )
        return frame(BatchDone(finished=finished, outputs=[bytes(OUTPUT_BYTES * (BATCH - room))]))


class Front:
    """Has a number of calls under way, and sends new ones in bundles when some are answered."""

    def __init__(self, connection: object, wire: Wire, calls: int, images: int, plan: int) -> None:
        self.connection, self.wire, self._images, self._plan = connection, wire, images, plan
        self._free, self._number, self._left = calls, 0, {}

    def answers(self) -> int:
        """Read the answers; return how many calls are done."""
        from slimsched.serving.api.fronts.bundles import Answers, ToFront

        done = 0
        for raw in self.wire.take():
            message = msgspec.msgpack.decode(raw, type=ToFront)
            if isinstance(message, Answers):
                assert not message.refusals, message.refusals
                for answer in message.answers:
                    left = self._left[answer.number]
                    examples = sum(receipt.examples for receipt in answer.receipts)
                    for call in range(answer.start // self._images, len(left)):
                        begin, end = call * self._images, (call + 1) * self._images
                        both = min(end, answer.start + examples) - max(begin, answer.start)
                        left[call] -= max(0, both)
                        done += both > 0 and not left[call]
        self._free += done
        return done

    def calls(self, now_s: float) -> bytes | None:
        """Return the message with all calls that can be sent now."""
        from slimsched.serving.api.fronts.bundles import Calls, FrontCalls
        from slimsched.serving.domain.request import Terms
        from slimsched.serving.live.wire import InputPiece

        bundles, most = [], max(1, BATCH // self._images)
        while self._free:
            count = min(self._free, most)
            self._free -= count
            self._left[self._number] = [self._images] * count
            pieces = [InputPiece(self._images, [4096])] * count
            if self._images * ROW_BYTES < 2**14:
                pieces = [InputPiece(self._images * count, [4096])]
            counts, terms = [self._images] * count, Terms(plan=self._plan)
            bundles.append(FrontCalls(self._number, 0, counts, now_s, (), pieces, terms))
            self._number += 1
        return frame(Calls(calls=bundles)) if bundles else None


class Rig:
    """A gateway with everything that observes it, and the two sides that it talks to."""

    def __init__(self, config: str, images: int, calls: int, plan: str) -> None:
        from slimsched.cli.serving.scenario import LiveScenarioOptions
        from slimsched.serving.api import metrics
        from slimsched.serving.api.fronts.bundles import FromFront, FrontSession
        from slimsched.serving.api.limits import Limits
        from slimsched.serving.api.metrics import Metrics
        from slimsched.serving.api.service import InferenceService, Phase
        from slimsched.serving.gateway.gateway import Gateway
        from slimsched.serving.live import cluster as live
        from slimsched.serving.live.wire import FrameConnection, ToGateway
        from slimsched.serving.options import SERVING
        from slimsched.serving.routers.registry import make_router
        from slimsched.serving.telemetry.live_view import LiveView

        self.clock, self.took_s, self._chance = Clock(), 0.0, Random(0)
        live.monotonic = self.clock
        scenario = LiveScenarioOptions(config=Path(config)).read(None).scenario.for_clients()
        router = make_router(SERVING, scenario.cluster, 0, scenario.goal)
        gateway = Gateway(scenario.cluster, router, scenario.gateway)
        observers: list[object] = []
        cluster = live.LiveCluster(gateway, self, observers)
        service = InferenceService(cluster, Limits())
        view = LiveView(gateway, SERVING)
        observers += [Metrics(gateway, service.tally, SERVING, frame=lambda: view.frame(cluster.now_s)), view]
        observers += [metrics.ClusterLog(scenario.cluster.names)]
        self.cluster, self.view, self.service = cluster, view, service
        self.servers, self.fronts = [], []
        for index in range(len(scenario.cluster)):
            wire = Wire()
            link = FrameConnection(ToGateway, lambda _, m, index=index: cluster.received(index, m), print)
            link.connection_made(wire)
            self.servers.append(Server(index, link, wire))
        model = scenario.cluster.models[0]
        number = model.tree.index[model.spec.path(plan)] if plan else -1
        for index in range(FRONTS):
            wire = Wire()
            link = FrameConnection(FromFront, lambda _, m, at=index: self.sessions[at].received(m), print)
            link.connection_made(wire)
            share = len(range(index, calls, FRONTS))
            self.fronts.append(Front(link, wire, share, images, number))
        self.sessions = [FrontSession(service, cluster, front.connection.send) for front in self.fronts]
        service.phase = Phase.READY

    arena, profiles = None, False
    clock_zero_s, first_id, waiting = Clock.now_s, 0, ()

    async def start(self, listener: object) -> None:
        """All servers are up at once."""
        for server in range(len(self.servers)):
            listener.server_up(server)

    def send(self, server: int, message: msgspec.Struct) -> None:
        """Send to a server."""
        self.servers[server].connection.send(message)

    async def gateway(self, connection: object, data: bytes) -> None:
        """Let the gateway read a message, and do all that follows."""
        began_s = time.thread_time()
        if self.profiles:
            PROFILE.enable()
        connection.data_received(data)
        for _ in range(3):
            await asyncio.sleep(0)
        if self.profiles:
            PROFILE.disable()
        self.took_s += time.thread_time() - began_s

    async def batch(self, server: Server) -> int:
        """Let a batch end, and clients send their next calls; return how many calls are done."""
        self.clock.now_s += BATCH_S
        if (report := server.batch()) is not None:
            await self.gateway(server.connection, report)
        done = 0
        for front in self.fronts:
            done += front.answers()
            if self._chance.random() < LATE:
                continue
            if (calls := front.calls(self.clock.now_s)) is not None:
                await self.gateway(front.connection, calls)
        return done


async def run(options: argparse.Namespace) -> float:
    """Return the microseconds per call."""
    images = options.images[0]
    rig = Rig(options.config, images, options.calls or UNDER_WAY[images], options.plan)
    await rig.cluster.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as `slim serve` does
    for warm in (True, False):
        done, rig.took_s, rig.profiles = 0, 0.0, options.profile and not warm
        for number in range(options.batches // (4 if warm else 1)):
            done += await rig.batch(rig.servers[number % len(rig.servers)])
            if number % 227 == 0:
                rig.view.frame(rig.cluster.now_s)
    return 1e6 * rig.took_s / done


def measure(images: int, source: Path, options: argparse.Namespace) -> float:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--once", "--images", str(images), "--plan", options.plan]
    command += ["--calls", str(options.calls), "--batches", str(options.batches), "--config", options.config]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each size in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=str(HERE / "h200-one-batch.toml"))
    parser.add_argument("--images", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--calls", type=int, default=0, help="calls under way, of all fronts together")
    parser.add_argument("--plan", default="1.0", help="stated plan; empty: the router chooses")
    parser.add_argument("--batches", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source", type=Path, help="src of another checkout")
    parser.add_argument("--profile", action="store_true", help="say which functions take the time")
    parser.add_argument("--lines", type=int, default=50)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.once or options.profile:
        from slimsched.serving.live import wire as event_loop
    if options.once:
        print(event_loop.run(run(options)))
    elif options.profile:
        import pstats

        event_loop.run(run(options))
        pstats.Stats(PROFILE).sort_stats("tottime").print_stats(options.lines)
    else:
        sources = {"this": HERE.parent / "src", **({"other": options.source} if options.source else {})}
        for images in options.images:
            found: dict[str, list[float]] = {name: [] for name in sources}
            for _ in range(options.rounds):
                for name, source in sources.items():
                    found[name].append(measure(images, source, options))
            row = {name: round(statistics.median(each), 1) for name, each in found.items()}
            print(json.dumps({"images": images, **row, "all": found}), flush=True)


if __name__ == "__main__":
    main()
