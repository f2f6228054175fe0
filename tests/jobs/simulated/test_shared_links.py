"""Three ways to share a link, on two gangs that cross racks over the same uplinks."""

import pytest

from jobs.workloads import SMALL, job
from slimsched.jobs.domain import FABRICS
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.simulated.cluster import RunningGang, SharedLinks
from slimsched.jobs.traces.models import TRAINING_MODELS

HERE, THERE = (machine.name for machine in (SMALL.machines[0], SMALL.machines[2]))


def pace(sharing: str, *models: str) -> list[float]:
    """Iteration times of gangs of these models, over what each takes alone."""
    sensitivity = Sensitivity(topology=SMALL, fabric=FABRICS["congested"], models=TRAINING_MODELS)
    links = SharedLinks(sensitivity, sharing)  # type: ignore[arg-type]
    placement = ((HERE, 2), (THERE, 2))
    gangs = [
        RunningGang(job(str(i), 4, model=name), placement, 0.0, 0.0, 100.0) for i, name in enumerate(models)
    ]
    alone_s = []
    for gang in gangs:
        neighbours = links.join(gang)
        alone_s.append(gang.iteration_s)
        assert neighbours is not None
        for _ in range(20):
            links.settle(neighbours)
    return [gang.iteration_s / one for gang, one in zip(gangs, alone_s, strict=True)]


@pytest.mark.parametrize("sharing", ["fair", "shifted", "priority"])
def test_a_gang_alone_on_its_links_is_not_slowed(sharing: str) -> None:
    assert pace(sharing, "resnet50") == [pytest.approx(1.0)]


def test_gangs_that_send_rarely_do_not_meet_when_shifted() -> None:
    fair, shifted = pace("fair", "resnet50", "imagenet"), pace("shifted", "resnet50", "imagenet")
    assert min(fair) > 1.01
    assert shifted == [pytest.approx(1.0), pytest.approx(1.0)]


def test_gangs_that_send_all_the_time_meet_all_the_same() -> None:
    fair, shifted = pace("fair", "lm", "lm"), pace("shifted", "lm", "lm")
    assert max(shifted) > 1.5
    assert max(shifted) <= max(fair) + 1e-9


def test_with_priorities_the_gang_that_computes_more_per_second_of_sending_goes_first() -> None:
    sparing, sending = pace("priority", "imagenet", "lm")
    assert sparing == pytest.approx(1.0)
    assert sending > 1.01
