"""Stop when sure on real servers: of a call of several images some go on, and each gets its own answer."""

import asyncio
from time import monotonic

import numpy as np
import pytest
import torch

from cluster import MODEL, widths_of
from hosting import whole_network
from slimsched.models.loading import load
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.observation import Observation, Route, Verdict
from slimsched.serving.live.calls import Answered
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine, specs_of
from slimsched.serving.scenario.files import load_scenario

CALLS, IMAGES = 6, 8
NARROW, WIDE = (0, 0, 0, 0), (0, 0, 3, 3)


class Doubter:
    """Begins with narrow plans, and doubts every third answer."""

    def route(self, seen: Observation) -> Route:
        return Route(seen.alive_ids[0], 0, 16, "narrow", NARROW[1:])

    def keeps(self, model: int) -> bool:
        return True

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        doubts = request.path == NARROW and doubted(request.id)
        return Verdict(plan=MODEL.tree.index[WIDE] if doubts else -1, sure=0.5, hope=0.6, why="a test")


def doubted(number: int) -> bool:
    return number % 3 == 1


async def answers(images: "np.typing.NDArray[np.uint8]") -> list[Answered]:
    """Send all calls at once."""
    scenario = load_scenario("laptop")
    zero_s = monotonic()
    gateway = Gateway(scenario.cluster, Doubter(), scenario.gateway)
    running = LiveCluster(gateway, LocalEngine(specs_of(scenario), clock_zero_s=zero_s))
    await running.start()
    try:
        calls = [running.submit([call.tobytes()], count=IMAGES) for call in images]
        return list(await asyncio.wait_for(asyncio.gather(*calls), 60.0))
    finally:
        await running.stop(limit_s=10.0)


@pytest.mark.slow
def test_calls_of_several_images_get_the_answer_of_each_images_last_plan() -> None:
    images = np.random.default_rng(0).integers(0, 256, (CALLS, IMAGES, 3, 32, 32), dtype=np.uint8)
    found = asyncio.run(answers(images))
    rows = np.concatenate([answer.outputs[0] for answer in found])
    receipts = [one for answer in found for one in answer.receipts for _ in range(one.examples)]
    model = load()
    for number, receipt in enumerate(receipts):
        assert receipt.path == (WIDE if doubted(number) else NARROW)
        image = torch.from_numpy(images.reshape(-1, 3, 32, 32)[number])[None]
        whole = whole_network(model, image, widths_of(receipt.path))[0]
        assert (torch.from_numpy(rows[number].copy()) - whole).norm() < 0.05 * whole.norm()
