"""The controller beside a Slurm of a few numbers, that also does what nobody told it to."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from jobs.slurm.fake_slurm import FakeSlurm
from slimsched.core.log import EVENTS, Log, LogWriter, replay
from slimsched.jobs.domain import fabric_named
from slimsched.jobs.setting import SchedulerSetting, machines_of
from slimsched.jobs.slurm.controller import (
    NEXT_STAGES,
    PHASES_OF,
    DryRunClient,
    JobStage,
    SlurmController,
    SlurmSnapshot,
    Tracked,
    observe,
)
from slimsched.jobs.slurm.wire import Memory, SlurmClient, SlurmUnreachableError
from slimsched.jobs.traces.models import TRAINING_MODELS

ROUNDS = 250
RACKS = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}


def setting_of(policy: str) -> SchedulerSetting:
    return SchedulerSetting(
        engine="slurm", policy=policy, cluster="slurm", fabric=fabric_named("congested"),
        models=TRAINING_MODELS, quotas={"nobody": 4},
    )  # fmt: skip


def look(slurm: FakeSlurm) -> SlurmSnapshot:
    return observe(slurm, racks=RACKS, partition=None, unix_s=slurm.now_s, speed=600.0)


@pytest.mark.parametrize("policy", ["dally", "tiresias", "backfill"])
@pytest.mark.parametrize("seed", range(4))
def test_notebook_scheduler_and_log_agree_after_every_round(policy: str, seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    slurm = FakeSlurm(rng)
    setting = setting_of(policy)
    path = tmp_path / EVENTS
    with LogWriter(path, setting.header()) as log:
        controller = SlurmController(client=slurm, setting=setting, observer=log)
        for number in range(ROUNDS):
            if number < ROUNDS // 2 and rng.random() < 0.4:
                slurm.add(rng.choice((1, 1, 2, 3, 4, 6, 8)), rng.uniform(2.0, 20.0))
            slurm.step(1.0, trouble=0.15 * (number < ROUNDS // 2))
            with suppress(SlurmUnreachableError):
                controller.round(look(slurm))
            controller.validate()
    assert len(slurm.finished) == len(set(slurm.finished))
    assert len(slurm.finished) > 10
    written = Log(path)
    assert replay(written.entries(), machines_of(written.header.setting)).difference is None


def test_every_stage_has_its_phases_and_what_may_follow_it() -> None:
    assert set(NEXT_STAGES) == set(PHASES_OF) == set(JobStage)


def test_a_stage_that_may_not_follow_is_an_error_with_the_job() -> None:
    tracked = Tracked("7", JobStage.WAITING, Memory(), (), 0)
    with pytest.raises(AssertionError, match=r"job_id='7'.*cannot be running next"):
        tracked.enter(JobStage.RUNNING)


class Reliable(Random):
    """Nothing odd ever happens."""

    def random(self) -> float:
        return 0.99


def test_a_notebook_that_disagrees_with_the_scheduler_is_found() -> None:
    slurm = FakeSlurm(Reliable(0))
    slurm.add(2, 100.0)
    slurm.add(16, 100.0)
    controller = SlurmController(client=slurm, setting=setting_of("dally"))
    controller.validate()
    for _ in range(3):
        controller.round(look(slurm))
        slurm.step(1.0, trouble=0.0)
    controller.validate()
    first, second = controller._tracked.values()
    assert (first.stage, second.stage) == (JobStage.RUNNING, JobStage.WAITING)
    for tracked, stage in ((first, JobStage.WAITING), (first, JobStage.STOPPING), (second, JobStage.RUNNING)):
        before, tracked.stage = tracked.stage, stage
        with pytest.raises(AssertionError, match=f"job_id='{tracked.job_id}'.* but job '{tracked.job_id}'"):
            controller.validate()
        tracked.stage = before
    first.placement = (("n3", 2),)
    with pytest.raises(AssertionError, match="n3"):
        controller.validate()
    controller._tracked.clear()
    with pytest.raises(AssertionError, match="know other jobs"):
        controller.validate()


def test_a_dry_run_says_what_it_would_tell_slurm_and_tells_it_nothing() -> None:
    dry = DryRunClient(SlurmClient())
    dry.place("7", (("n1", 2),), Memory(served_s=3.0))
    dry.remember("7", Memory(served_s=3.0))
    dry.release("7")
    dry.hold("8")
    dry.requeue_held("9")
    placed, *others = dry.calls
    assert placed.startswith("scontrol update JobId=7 NumNodes=1-1 ReqNodeList=n1 ")
    assert "AdminComment" not in placed
    assert others == ["scontrol release 7", "scontrol hold 8", "scontrol requeuehold Incomplete 9"]
