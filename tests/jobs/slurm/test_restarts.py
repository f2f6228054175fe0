"""Kill the controller, restart slurmctld: no gang is lost, none runs to its end twice."""

import random
from collections import Counter

import msgspec
import pytest

from slimsched.core.log import Log, replay
from slimsched.jobs.scheduler.messages import JobSubmitted
from slimsched.jobs.setting import machines_of
from slimsched.jobs.slurm.wire import Status


@pytest.mark.slow
@pytest.mark.slurm
def test_a_killed_controller_and_a_restarted_slurmctld_lose_and_double_nothing(site) -> None:
    rng = random.Random(3)
    for _ in range(30):
        site.submit(
            gpus=rng.choice((1, 2, 4, 8, 16)), steps=rng.randint(2, 4), model=rng.choice(("bert", "lm"))
        )

    first = site.control(speed=60)
    site.wait(lambda: site.count(Status.GONE) >= 4, "some gangs are done and many wait")
    first.kill()
    first.wait()
    held = site.count(Status.HELD)
    assert held > 0, "the test wants gangs that still wait"

    second = site.control(speed=60)
    site.wait(
        lambda: site.output().count("the controller starts") == 2 and site.count(Status.GONE) >= 10,
        "the second controller carries on",
    )
    site.stop_slurmctld()
    site.wait(lambda: "does not answer" in site.output(), "the controller notices that slurmctld is away")
    site.cluster.start_controller()
    site.wait(lambda: second.poll() is not None, "no gang is left", timeout_s=120)

    assert second.returncode == 0
    assert Counter(job.state for job in site.jobs().values()) == {"COMPLETED": 30}
    assert Counter(site.finished()) == dict.fromkeys(site.gangs, 1)
    assert "Slurm is back" in site.output()


@pytest.mark.slow
@pytest.mark.slurm
def test_a_second_controller_is_refused(site) -> None:
    site.submit(gpus=1, steps=3)
    controller = site.control(speed=60)
    site.wait(lambda: site.count(Status.RUNNING) == 1, "the first controller works")
    refused = site.slim("run", "--until-idle")
    assert refused.returncode == 2
    assert "another controller drives cluster" in refused.stderr
    site.wait(lambda: controller.poll() == 0, "the gang is done")


@pytest.mark.slow
@pytest.mark.slurm
def test_a_restarted_controller_remembers_since_when_a_gang_declines(site) -> None:
    """Delay timers run from the first declined offer; a restart must not wind them back."""
    for _ in range(8):
        site.submit(gpus=5, steps=60)  # three GPUs are left on each machine
    gang = site.submit(gpus=4, steps=1, model="yolov3")
    first = site.control(speed=60)
    site.wait(lambda: site.memory(gang).declined_since_s is not None, "the gang declines an offer")
    first.kill()
    first.wait()
    declined_since_s = site.memory(gang).declined_since_s
    asked = site.slim("explain", gang, "--engine=slurm", "--network=congested", "--speed=60", "--json")
    why = msgspec.json.decode(asked.stdout)
    assert (why["state"], why["allowed_tier"], why["nearest"]["missing_gpus"]) == ("waiting", 0, 1)

    site.control(speed=60)
    site.wait(lambda: gang in site.finished(), "the gang has run at a wider tier")
    told = [
        event for _, event, _ in site.entries() if isinstance(event, JobSubmitted) and event.job.id == gang
    ]
    assert told[-1].declined_since_s == declined_since_s
    for path in site.logs():  # that of the controller that was killed, too
        log = Log(path)
        assert replay(log.entries(), machines_of(log.header.setting)).difference is None
    assert len(site.logs()) == 2
