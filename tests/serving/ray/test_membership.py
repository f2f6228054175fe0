"""Servers come, go and die while requests are under way: every request is answered exactly once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from msgspec import Struct

pytest.importorskip("ray")

import ray

from raylets import LATE, Raylets, start
from slimsched.serving.domain.request import ids_of
from slimsched.serving.gateway.messages import Answer, Drop
from slimsched.serving.live.calls import Answered
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.ray.engine import RayEngine
from slimsched.serving.ray.messages import GATEWAY_BITS

IMAGE = np.zeros((3, 32, 32), np.uint8).tobytes()


class Answers:
    """An observer that counts how often each request is answered or dropped."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.dropped: list[str] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        for command in commands:
            if isinstance(command, Answer):
                self.times.update(ids_of(command.requests))
            elif isinstance(command, Drop):
                self.dropped.append(command.reason)


class Flow:
    """A steady flow of requests in the background."""

    def __init__(self, live: LiveCluster, each: int = 8) -> None:
        self._live, self._each = live, each
        self.waiters: list[asyncio.Future[Answered]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.waiters += [self._live.submit([IMAGE]).future for _ in range(self._each)]
            while self._live.in_system > 64:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.01)

    async def stop(self) -> list[Answered]:
        """Send nothing more; every answer."""
        self._task.cancel()
        return list(await asyncio.wait_for(asyncio.gather(*self.waiters), 60))

    def latest(self, count: int = 64) -> list[Answered]:
        done = [w for w in self.waiters[-400:] if w.done()]
        return [w.result() for w in done[-count:]]


Test = Callable[[LiveCluster, RayEngine, Answers], Awaitable[None]]


def on_ray(raylets: Raylets, folder: Path, test: Test, extra: str = "") -> None:
    async def main() -> None:
        answers = Answers()
        live, engine = await start(raylets, folder, extra=extra, observers=[answers])
        try:
            await test(live, engine, answers)
        finally:
            await engine.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Wait for a condition and say how long it took."""
    began_s = monotonic()
    while not condition():
        assert monotonic() - began_s < limit_s, "it did not happen"
        await asyncio.sleep(0.01)
    return monotonic() - began_s


def test_killing_a_raylet_under_load_loses_no_request_and_answers_none_twice(
    raylets: Raylets, tmp_path: Path
) -> None:
    doomed = raylets.add(spare=1.0)

    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        flow = Flow(live)
        await until(lambda: any("late" in one.receipts[0].servers for one in flow.latest()), 60)
        await asyncio.to_thread(raylets.kill, doomed)
        await until(lambda: not live.is_alive(2), 60)
        await until(lambda: all("late" not in one.receipts[0].servers for one in flow.latest()), 60)
        node = raylets.add(spare=1.0)  # Ray starts the server again there
        await until(lambda: any("late" in one.receipts[0].servers for one in flow.latest()), 60)
        found = await flow.stop()
        raylets.cluster.remove_node(node)
        assert len(found) == len(answers.times) == len(flow.waiters)
        assert set(answers.times.values()) == {1}
        assert not answers.dropped

    on_ray(raylets, tmp_path, test, extra=LATE)


def test_a_server_added_under_load_receives_work_within_seconds(raylets: Raylets, tmp_path: Path) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        assert not live.is_alive(2)
        flow = Flow(live)
        await until(lambda: len(answers.times) > 50, 60)
        node = raylets.add(spare=1.0)
        await until(lambda: any("late" in one.receipts[0].servers for one in flow.latest()), 60)
        await flow.stop()
        assert set(answers.times.values()) == {1}
        raylets.cluster.remove_node(node)

    on_ray(raylets, tmp_path, test, extra=LATE)


def test_a_server_that_leaves_finishes_first_and_can_come_back(raylets: Raylets, tmp_path: Path) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        roster = ray.get_actor("roster", engine.namespace)
        flow = Flow(live)
        await until(lambda: len(answers.times) > 50, 60)
        await roster.drain_server.remote("two")
        await until(lambda: not live.is_alive(1), 60)
        assert await roster.servers.remote() == {"one": True}
        await until(lambda: all("two" not in one.receipts[0].servers for one in flow.latest()), 60)
        await roster.start_server.remote("two")
        await until(lambda: live.is_alive(1), 60)
        await flow.stop()
        assert set(answers.times.values()) == {1}
        assert not answers.dropped

    on_ray(raylets, tmp_path, test)


def test_serving_goes_on_without_the_roster_and_a_new_one_finds_the_servers(
    raylets: Raylets, tmp_path: Path
) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        flow = Flow(live)
        await until(lambda: len(answers.times) > 50, 60)
        ray.kill(ray.get_actor("roster", engine.namespace), no_restart=False)
        before = len(answers.times)
        await until(lambda: len(answers.times) > before + 100, 60)
        for _ in range(100):
            with suppress(ray.exceptions.RayError):
                roster = ray.get_actor("roster", engine.namespace)
                if await roster.servers.remote() == {"one": True, "two": True}:
                    break
            await asyncio.sleep(0.1)
        assert (await roster.join.remote(["one", "two"])).number > engine.first_id >> GATEWAY_BITS
        assert live.is_alive(0)
        assert live.is_alive(1)
        await flow.stop()
        assert set(answers.times.values()) == {1}

    on_ray(raylets, tmp_path, test)


def test_servers_are_added_on_backlog_and_drained_when_idle(raylets: Raylets, tmp_path: Path) -> None:
    limits = """
[autoscale]
min = 1
up_backlog_s = 0.01
up_after_s = 0.3
down_idle_s = 1.0
cooldown_s = 0.5
"""

    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        assert live.is_alive(0)
        assert not live.is_alive(1)
        flow = Flow(live, each=32)
        await until(lambda: live.is_alive(1), 60)
        await flow.stop()
        await until(lambda: not live.is_alive(1), 60)
        assert live.is_alive(0)
        assert set(answers.times.values()) == {1}

    on_ray(raylets, tmp_path, test, extra=limits)
