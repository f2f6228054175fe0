"""What is not ours is left alone; what we would do can be seen first."""

import re

import msgspec
import pytest

from slimsched.jobs.slurm.wire import Status
from slimsched.jobs.traces.clusters import host_names


@pytest.mark.slow
@pytest.mark.slurm
def test_strangers_keep_their_gpus_and_drained_machines_get_no_gang(site) -> None:
    stranger = site.slurm(
        "sbatch", "--parsable", "--nodelist=n1", "--gres=gpu:8", "--output=/dev/null", "--wrap=sleep 60"
    ).strip()
    site.slurm("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    gangs = [site.submit(gpus=16, steps=1) for _ in range(4)]
    controller = site.control(speed=60)
    try:
        site.wait(lambda: controller.poll() == 0, "the gangs are done")
    finally:
        site.resume("n2")

    assert sorted(site.finished()) == sorted(gangs)
    machines = {name for line in site.journal() for name in host_names(line.split()[-1])}
    assert machines == {"n3", "n4", "n5", "n6", "n7", "n8"}
    assert {job.id: job.status for job in site.client.jobs()}[stranger] is Status.RUNNING


@pytest.mark.slow
@pytest.mark.slurm
def test_a_dry_run_says_what_it_would_do_and_does_nothing(site) -> None:
    gang = site.submit(gpus=12, steps=1)
    dry = site.slim("run", "--dry-run", "--json")
    plan = msgspec.json.decode(dry.stdout)
    assert [command["job_id"] for command in plan["commands"]] == [gang]
    place, release = plan["calls"]
    free = r"ReqNodeList=n\d,n\d"  # which two depends on what ran there just before
    assert re.fullmatch(
        f"scontrol update JobId={gang} NumNodes=2-2 {free} TresPerNode=gres:gpu:6 TresPerJob=", place
    )
    assert release == f"scontrol release {gang}"
    assert site.jobs()[gang].status is Status.HELD
    assert site.jobs()[gang].admin_comment == ""


@pytest.mark.slow
@pytest.mark.slurm
def test_a_submitted_script_waits_held_with_what_the_scheduler_must_know(site, tmp_path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nsleep 1\n")
    done = site.slim(
        "submit", "--gpus=8", "--model=bert", "--sbatch=--output=/dev/null", str(script), "--lr=1"
    )
    job = next(job for job in site.client.jobs() if job.id == done.stdout.strip())
    assert (job.status, job.gpus, job.comment) == (Status.HELD, 8, 'slim {"model":"bert"}')


@pytest.mark.slow
@pytest.mark.slurm
def test_gangs_that_cannot_be_placed_are_named_and_left_alone(site) -> None:
    too_large = site.submit(gpus=65, steps=1)
    by_task = site.slurm(
        "sbatch", "--parsable", "--hold", "--comment=slim", "--ntasks=2", "--gpus-per-task=1", "--wrap=true"
    ).strip()
    array = site.slurm(
        "sbatch", "--parsable", "--hold", "--comment=slim", "--array=1-2", "--gpus=1", "--wrap=true"
    ).strip()
    site.gangs += [by_task, array]
    done = site.slim("run", "--until-idle", "--poll-s=0.2")
    assert done.returncode == 0
    assert f"job {too_large} asks for 65 GPUs, more than there are now" in done.stderr
    assert f"job {by_task} cannot be placed: it asks for GPUs by the task" in done.stderr
    assert f"job {array} cannot be placed: it is part of a job array" in done.stderr
    assert site.count(Status.HELD) == 3
