"""Real server processes on this machine: right answers, nothing lost, nothing left behind."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from cluster import MODEL, flat_profile, path, small_cluster, widths_of
from hosting import whole_network
from logs import entries
from slimsched.core.config import ConfigError
from slimsched.core.log import Header, Observer
from slimsched.models.loading import load
from slimsched.serving.api.calls import Call
from slimsched.serving.api.limits import TooLate
from slimsched.serving.api.service import InferenceService, Limits, Phase
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.profile import record_of
from slimsched.serving.domain.request import DropReason, Terms
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions, SegmentFinished
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.live import peers
from slimsched.serving.live.calls import DroppedError, OpenCall
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine, RunLog, specs_of
from slimsched.serving.live.wire import Fetch, Ready, ServerLog, ServerSpec, ServerStart
from slimsched.serving.scenario.files import RunSetting, load_scenario
from slimsched.serving.scheduler.scheduler import GreedyScheduler, SchedulerOptions

SERVERS = 2
WIDEST = Terms(plan=MODEL.tree.index[path(1.0, 1.0, 1.0, 1.0)])
OPTIONS = SchedulerOptions(batch_limit=8, utilization_block=2.0)


class Wanderer:
    """Never runs two segments of a block in one place; changes the width every time."""

    def __init__(self) -> None:
        self.turn = 0

    def route(self, seen: Observation) -> Route:
        self.turn += 1
        others = [server for server in seen.alive_ids if server != seen.source]
        server = (others or seen.alive_ids)[self.turn % len(others or seen.alive_ids)]
        return Route(server, self.turn % 4, 4, "wandering")


def live(
    test: Callable[[LiveCluster, LocalEngine], Awaitable[None]],
    logs: Path | None = None,
    observers: Sequence[Observer] = (),
    **gateway: object,
) -> None:
    """Start two server processes, run the test against them, stop them."""

    async def main() -> None:
        cluster = small_cluster((1.0,) * SERVERS)
        profile = record_of(flat_profile(instance_bytes=1), MODEL)
        specs = [
            ServerSpec(
                index=index,
                name=name,
                host=Host(),
                scheduler=OPTIONS,
                models=[MODEL.name],
                profiles=[profile],
                telemetry_period_s=0.1,
            )
            for index, name in enumerate(cluster.names)
        ]
        log = None if logs is None else RunLog(logs, RunSetting(scenario={}, router="wanderer"), SERVERS)
        engine = LocalEngine(specs, clock_zero_s=0.0, log=log)
        options = GatewayOptions(step_s=0.002, **gateway)  # type: ignore[arg-type]
        running = LiveCluster(Gateway(cluster, Wanderer(), options), engine, observers)
        await running.start()
        try:
            await test(running, engine)
        finally:
            pids = [engine.pid(server) for server in range(SERVERS)]
            await running.stop()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "no process is left running"
        prefix = engine.start_of(0, 1).shared_prefix
        assert not list(peers.FOLDERS[0].glob(f"{prefix}-*")), "nor shared memory"

    asyncio.run(main())


def random_images(count: int) -> "np.typing.NDArray[np.uint8]":
    return np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def test_large_inputs_are_read_where_the_gateway_put_them() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        arena, images = engine.arena, random_images(48)
        assert arena is not None
        calls = [running.submit([part.tobytes()], count=len(part)) for part in np.split(images, 4)]
        assert arena.in_use_bytes >= images.nbytes
        engine.kill(0)  # what it had is sent again
        answers = await asyncio.gather(*calls)
        model = load()
        logits = np.concatenate([answer.outputs[0] for answer in answers])
        receipts = [one for answer in answers for one in answer.receipts for _ in range(one.examples)]
        for image, row, receipt in zip(images, logits, receipts, strict=True):
            whole = whole_network(model, torch.from_numpy(image)[None], widths_of(receipt.path))
            assert (torch.from_numpy(row.copy()) - whole[0]).norm() < 0.05 * whole[0].norm()
        assert arena.in_use_bytes == 0

    live(test)


def test_answers_are_the_networks_own_though_activations_cross_between_servers(tmp_path: Path) -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        images = random_images(24)
        answers = await asyncio.gather(*[running.submit([image.tobytes()]) for image in images])
        model = load()
        for image, answer in zip(images, answers, strict=True):
            (receipt,) = answer.receipts
            assert len(receipt.path) == len(receipt.servers) == len(receipt.reasons) == 4
            assert all(one != two for one, two in zip(receipt.servers, receipt.servers[1:], strict=False))
            assert receipt.latency_s >= receipt.compute_s > 0
            (logits,) = answer.outputs
            whole = whole_network(model, torch.from_numpy(image)[None], widths_of(receipt.path))
            off = torch.from_numpy(logits[0].copy()) - whole[0]
            assert off.norm() < 0.05 * whole[0].norm()  # servers may use bfloat16

    live(test, logs=tmp_path)
    for number in range(SERVERS):  # the servers' own logs, replayed into fresh schedulers
        fresh = GreedyScheduler(OPTIONS, flat_profile(instance_bytes=1), [MODEL])
        logged = entries(tmp_path / f"events-server-{number}.jsonl.gz")
        for entry in logged:
            assert fresh.handle(entry.event, now_s=entry.now_s) == entry.commands
        assert len(logged) > 20


def test_a_server_killed_under_load_costs_no_request_and_comes_back() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        images = random_images(150)
        waiters = [running.submit([image.tobytes()]).future for image in images]
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        before = engine.pid(0)
        engine.kill(0)
        answers = await asyncio.gather(*waiters)
        assert len(answers) == 150
        assert running.in_system == 0
        while engine.pid(0) == before or not running.is_alive(0):
            await asyncio.sleep(0.05)
        again = await running.submit([images[0].tobytes()])
        assert again.outputs[0].shape == (1, 100)

    live(test)


def test_a_stranger_at_the_sockets_gets_nothing_and_disturbs_nobody() -> None:
    async def said(path: str, message: msgspec.Struct) -> bytes:
        """All that comes back until the other side hangs up."""
        reader, writer = await asyncio.open_unix_connection(path)
        body = msgspec.msgpack.encode(message)
        writer.write(len(body).to_bytes(4, "little") + body)
        back = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return back

    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        start = engine.start_of(0, 1)
        for ready in (
            Ready(index=0, pid=1),
            Ready(index=0, pid=1, life=1, secret="ü"),
            Ready(index=0, pid=1, life=1, secret=start.secret),  # a life that has its connection already
            Ready(index=9, pid=1, life=1, secret=start.secret),
        ):
            assert await said(start.gateway_socket, ready) == b""
        assert await said(start.own_socket, Fetch(requests=[0, 1, 2])) == b""
        assert len(await asyncio.gather(*[running.submit([i.tobytes()]) for i in random_images(24)])) == 24

    live(test)


class Count:
    """Examples that servers ran, by segment."""

    def __init__(self) -> None:
        self.examples = [0, 0, 0, 0]

    def observe(self, now_s: float, machine: str, event: object, commands: Sequence[object]) -> None:
        if isinstance(event, SegmentFinished):
            for leg in event.key.legs:
                self.examples[leg.segment] += event.examples


def test_what_nobody_waits_for_is_not_run() -> None:
    count, calls = Count(), 40

    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        images = random_images(8).tobytes()
        open_calls = [running.submit([images], WIDEST, count=8) for _ in range(calls)]
        await asyncio.sleep(0.05)  # on their way to the servers
        for open_call in open_calls[4:]:
            running.cancel(open_call.bundle)
        await asyncio.gather(*[open_call.future for open_call in open_calls[:4]])
        while running.in_system:
            await asyncio.sleep(0.01)

    live(test, observers=[count])
    assert 4 * 8 <= count.examples[3] < calls * 8 / 2


def test_what_is_too_late_is_dropped_with_a_reason() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        with pytest.raises(DroppedError, match="deadline passed"):
            await running.submit([random_images(1)[0].tobytes()], Terms(deadline_s=-1.0))

    live(test, early_drop=True)


def test_what_no_plan_can_meet_is_refused_before_requests_are_made() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        assert (
            running.refusal(Terms(deadline_s=1e-5), running.now_s + 1e-3, count=8, model=0)
            is DropReason.DEADLINE_OUT_OF_REACH
        )
        assert running.refusal(Terms(deadline_s=60.0), running.now_s, count=8, model=0) is None
        assert running.refusal(Terms(), running.now_s, count=8, model=0) is None
        assert running.in_system == 0

    live(test, early_drop=True)


def test_a_deadline_ends_a_call_though_its_servers_hang() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        for server in range(SERVERS):
            os.kill(engine.pid(server), signal.SIGSTOP)
        began_s = time.monotonic()
        patient = running.submit([random_images(1)[0].tobytes()])
        with pytest.raises(DroppedError, match="deadline passed"):
            await running.submit([random_images(1)[0].tobytes()], Terms(deadline_s=0.3))
        assert time.monotonic() - began_s >= 0.3
        assert not patient.future.done(), "it did not wait for a server"
        assert (await patient).outputs[0].shape == (1, 100), "a server that was started again answers it"
        assert running.in_system == 0

    live(test, early_drop=True)


def test_a_call_that_ends_at_its_deadline_leaves_nothing_for_the_garbage_collector() -> None:
    async def test(running: LiveCluster, engine: LocalEngine) -> None:
        service = InferenceService(running, Limits())
        service.phase = Phase.READY
        image = random_images(1)[0].tobytes()

        async def ask() -> None:
            terms = Terms(deadline_s=1e-4)
            call = Call(
                id="",
                api=next(iter(service.apis.values())),
                inputs=(image,),
                count=1,
                terms=terms,
                outputs=(),
            )
            with suppress(TooLate):
                await service.infer(call)
                raise AssertionError("it was answered in time")

        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                await asyncio.gather(ask(), ask())
            while running.in_system:
                await asyncio.sleep(0.01)
            assert sum(type(one) is OpenCall for one in gc.get_objects()) <= 2
        finally:
            gc.enable()

    live(test, early_drop=True)


def test_a_scenario_without_hosts_can_only_be_simulated() -> None:
    with pytest.raises(ConfigError, match="server 'server-0' of scenario 'paper' has no host"):
        specs_of(load_scenario("paper"))


def test_a_spec_survives_its_journey_to_the_process() -> None:
    spec = ServerSpec(
        index=0,
        name="a",
        host=Host(cores=(1,), speed=0.5),
        scheduler=OPTIONS,
        models=["slimresnet", "folder"],
        profiles=[record_of(flat_profile(), MODEL)],
        telemetry_period_s=0.1,
    )
    start = ServerStart(
        spec=spec,
        life=2,
        secret="s",
        clock_zero_s=1.5,
        gateway_socket="g",
        own_socket="o",
        shared_prefix="p",
        log=ServerLog(folder="f", header=Header(slim="test", kind="serving", setting={})),
    )
    back = msgspec.json.decode(msgspec.json.encode(start), type=ServerStart)
    assert back == start
    assert back.spec.profiles[0].profile(MODEL).idle_w == 10.0
