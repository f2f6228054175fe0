"""A preempted gang goes on from where it was."""

import msgspec
import pytest

from slimsched.jobs.slurm.wire import Status


@pytest.mark.slow
@pytest.mark.slurm
def test_a_preempted_gang_resumes_from_its_checkpoint(site) -> None:
    long = site.submit(gpus=64, steps=60, step_s=0.2)
    controller = site.control(speed=600)  # ten minutes a second: three seconds are a long attained service
    site.wait(lambda: site.count(Status.RUNNING) == 1, "the long gang runs")
    site.wait(lambda: len(site.journal()) == 1, "the long gang has begun to train")
    site.wait(lambda: site.ran_for_s(long) > 3, "the long gang has run for a while")
    preview = site.slim("victims", "--gpus=32", "--network=congested", "--speed=600", "--json")
    assert msgspec.json.decode(preview.stdout)["victims"] == [long]

    short = site.submit(gpus=32, steps=2)
    site.wait(lambda: controller.poll() == 0, "both gangs are done", timeout_s=90)

    assert site.finished() == [short, long]
    lines = [line for line in site.journal() if line.startswith(f"{long} ")]
    stopped = [int(line.split()[4]) for line in lines if " stopped " in line]
    started = [int(line.split()[4]) for line in lines if " started " in line]
    assert stopped
    assert stopped[0] > 0
    assert started == [0, *stopped]
    assert site.jobs()[long].restarts == len(stopped)
