"""A gateway loses sight of a server that lives: what it had there begins again, and nothing gets mixed up."""

import os
import signal
import time
from pathlib import Path

from raylets import Raylets
from serving.ray.test_membership import Answers, Flow, on_ray, until
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.ray.engine import RayEngine


def test_every_request_is_answered_once_though_connections_break_all_the_time(
    raylets: Raylets, tmp_path: Path
) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        flow = Flow(live, each=16)
        for server in (0, 1, 0, 1, 0, 1):
            seen = len(answers.times)
            await until(lambda seen=seen: len(answers.times) > seen + 60, 60)
            engine.lose_sight(server)
            await until(lambda server=server: not live.is_alive(server), 60)
            await until(lambda server=server: live.is_alive(server), 60)
        found = await flow.stop()
        assert len(found) == len(answers.times)
        assert set(answers.times.values()) == {1}
        assert not answers.dropped

    on_ray(raylets, tmp_path, test)


def test_a_hung_server_is_noticed_its_work_done_elsewhere_and_its_actor_replaced(
    raylets: Raylets, tmp_path: Path
) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        flow = Flow(live, each=16)
        await until(lambda: len(answers.times) > 60, 60)
        hung = engine.pid(0)
        os.kill(hung, signal.SIGSTOP)
        began_s = time.monotonic()
        await until(lambda: not live.is_alive(0), 60)
        assert time.monotonic() - began_s < 2.5
        seen = len(answers.times)
        await until(lambda: len(answers.times) > seen + 60, 60)
        await until(lambda: live.is_alive(0) and engine.pid(0) != hung, 60)
        found = await flow.stop()
        assert len(found) == len(answers.times)
        assert set(answers.times.values()) == {1}
        assert not answers.dropped

    on_ray(raylets, tmp_path, test)
