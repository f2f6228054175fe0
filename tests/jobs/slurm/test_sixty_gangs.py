"""Sixty gangs on a real Slurm: all run once, where and when the simulator says they would."""

import random
from collections import Counter
from statistics import mean

import msgspec
import pytest

from jobs.slurm.prediction import RACKS, Course, measured, predicted
from slimsched.core.log import Log, replay
from slimsched.jobs.scheduler.messages import Rebuilt
from slimsched.jobs.setting import machines_of
from slimsched.jobs.slurm.wire import Status

SPEED = 60.0  # a second of this test is a minute to the scheduler
SIZES = (1, 1, 2, 2, 4, 4, 8, 8, 16, 16)
MODELS = ("bert", "lm", "resnet18", "transformer", "resnet50")


def same_tier(live: dict[str, Course], simulated: dict[str, Course]) -> int:
    return sum(RACKS.tier(live[g].placement) == RACKS.tier(simulated[g].placement) for g in live)


@pytest.mark.slow
@pytest.mark.slurm
def test_sixty_gangs_finish_once_and_start_when_and_where_the_simulator_says(site, capsys) -> None:
    rng = random.Random(7)
    steps: dict[str, int] = {}

    def submit(gangs: int) -> None:
        for _ in range(gangs):
            gpus, count, model = rng.choice(SIZES), rng.randint(2, 6), rng.choice(MODELS)
            steps[site.submit(gpus=gpus, steps=count, model=model)] = count

    submit(24)
    controller = site.control(speed=SPEED)
    site.wait(lambda: site.count(Status.GONE) >= 6, "six gangs are done")
    submit(18)
    site.wait(lambda: site.count(Status.GONE) >= 24, "twenty-four gangs are done")
    submit(18)
    site.wait(lambda: controller.poll() is not None, "no gang is left", timeout_s=150)

    jobs = site.jobs()
    assert controller.returncode == 0
    assert Counter(job.state for job in jobs.values()) == {"COMPLETED": 60}
    assert Counter(site.finished()) == dict.fromkeys(site.gangs, 1)

    log = Log(*site.logs())
    replayed = replay(log.entries(), machines_of(log.header.setting))
    assert replayed.difference is None
    assert (replayed.entries, log.ending.ended) == (len(site.entries()), "closed")

    live = measured(site.entries())
    told = predicted(live)
    latency_s = {g: jobs[g].start_s - live[g].start_s / SPEED for g in live}  # Slurm counts whole seconds
    overhead_s = mean((live[g].end_s - live[g].start_s) / SPEED - steps[g] for g in live)
    guess = predicted(
        {
            g: msgspec.structs.replace(course, end_s=course.start_s + SPEED * (steps[g] + overhead_s))
            for g, course in live.items()
        }
    )
    off_s = [abs(told[g].start_s - live[g].start_s) / SPEED for g in live]
    waits_s = [mean(course.wait_s for course in c.values()) / SPEED for c in (live, told, guess)]
    rebuilt = [event.reason for _, event, _ in site.entries() if isinstance(event, Rebuilt)][1:]
    with capsys.disabled():
        print(
            f"\nsixty gangs: start latency mean {mean(latency_s.values()):.2f} s, max "
            f"{max(latency_s.values()):.2f} s; start and end cost {overhead_s:.2f} s; mean wait live "
            f"{waits_s[0]:.2f} s, simulated with real durations {waits_s[1]:.2f} s (largest difference "
            f"{max(off_s):.3f} s), with nominal ones {waits_s[2]:.2f} s; same tier {same_tier(live, told)} "
            f"and {same_tier(live, guess)} of 60; scheduler rebuilt {len(rebuilt)} times {rebuilt}"
        )

    # told how long each gang held its GPUs, the simulator finds the same starts and tiers
    assert mean(off_s) <= overhead_s
    assert same_tier(live, told) >= 57
    # told only how long each gang should take, it finds the same waits within what a start and an end cost
    assert abs(waits_s[2] - waits_s[0]) <= overhead_s
    assert same_tier(live, guess) >= 54
