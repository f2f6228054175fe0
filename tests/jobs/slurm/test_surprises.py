"""Operators and broken machines act behind the controller's back; it takes up what it finds."""

from collections import Counter

import pytest

from slimsched.jobs.slurm.wire import SlurmGoneError, Status


@pytest.mark.slow
@pytest.mark.slurm
def test_a_gang_whose_machine_goes_down_is_started_again(site) -> None:
    gangs = [site.submit(gpus=8, steps=5) for _ in range(2)]
    controller = site.control(speed=60)
    site.wait(lambda: len(site.journal()) == 2, "both gangs train")
    try:
        site.slurm("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=test")
        site.wait(lambda: controller.poll() == 0, "both gangs are done")
    finally:
        site.resume("n1")
    assert Counter(site.finished()) == dict.fromkeys(gangs, 1)
    assert [site.jobs()[gang].restarts for gang in gangs] == [1, 0]


@pytest.mark.slow
@pytest.mark.slurm
def test_operators_may_requeue_release_and_cancel(site) -> None:
    requeued = site.submit(gpus=64, steps=3)
    released = site.submit(gpus=64, steps=1)
    cancelled = site.submit(gpus=64, steps=1)
    controller = site.control(speed=60)
    site.wait(lambda: len(site.journal()) == 1, "the first gang trains")
    site.slurm("scontrol", "requeue", requeued)
    site.slurm("scontrol", "release", released)
    site.slurm("scancel", cancelled)
    site.wait(lambda: controller.poll() == 0, "no gang is left")
    assert Counter(site.finished()) == {requeued: 1, released: 1}
    assert site.jobs()[cancelled].status is Status.GONE
    assert site.jobs()[requeued].restarts == 1


@pytest.mark.slow
@pytest.mark.slurm
def test_stopping_a_gang_that_has_just_ended_does_not_run_it_again(site) -> None:
    gang = site.submit(gpus=1, steps=1, step_s=0.1)
    site.client.release(gang)
    site.wait(lambda: site.count(Status.GONE) == 1, "the gang is done")
    site.client.requeue_held(gang)
    assert site.jobs()[gang].state == "COMPLETED"
    with pytest.raises(SlurmGoneError, match="already finished"):
        site.client.hold(gang)
