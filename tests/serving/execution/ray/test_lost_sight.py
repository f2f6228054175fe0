"""A gateway loses sight of a server that lives: what it had there begins again, and nothing gets mixed up."""

from pathlib import Path

from raylets import Raylets
from serving.execution.ray.test_membership import Answers, Flow, on_ray, until
from slimsched.serving.execution.live.cluster import LiveCluster
from slimsched.serving.execution.ray.engine import RayEngine


def test_every_request_is_answered_once_though_connections_break_all_the_time(
    raylets: Raylets, tmp_path: Path
) -> None:
    async def test(live: LiveCluster, engine: RayEngine, answers: Answers) -> None:
        flow = Flow(live, each=16)
        for server in (0, 1, 0, 1, 0, 1):
            seen = len(answers.times)
            await until(lambda seen=seen: len(answers.times) > seen + 60, 30)
            engine.lose_sight(server)
            await until(lambda server=server: not live.is_alive(server), 5)
            await until(lambda server=server: live.is_alive(server), 10)
        found = await flow.stop()
        assert len(found) == len(answers.times)
        assert set(answers.times.values()) == {1}
        assert not answers.dropped

    on_ray(raylets, tmp_path, test)
