"""Reading what Slurm says, in the shapes of different versions."""

import pytest

from slimsched.jobs.domain import gpu_count
from slimsched.jobs.slurm.controller import STEPS, JobStage
from slimsched.jobs.slurm.wire import (
    JobRequest,
    Memory,
    SlurmJob,
    SlurmNode,
    Status,
    memory_in,
    number,
    request_in,
    written,
)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gres:gpu:4", 4),
        ("gpu:a100:2(S:0-1)", 2),
        ("gres/gpu=8", 8),
        ("gres/gpu:a100=8", 8),
        ("gpu:3(IDX:5-7)", 3),
        ("gpu:a100:2,gpu:v100:1", 3),
        ("craynetwork:1", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_gpus_are_counted_in_every_spelling(text: str | None, gpus: int) -> None:
    assert gpu_count(text) == gpus


def test_numbers_come_bare_or_wrapped_and_unlimited_is_none() -> None:
    assert number(7) == 7
    assert number({"set": True, "infinite": False, "number": 7}) == 7
    assert number({"set": True, "infinite": True, "number": 0}) is None
    assert number({"set": False, "infinite": False, "number": 0}) is None
    assert number(0xFFFFFFFF) is None
    assert number(None) is None


@pytest.mark.parametrize(
    ("state", "priority", "status"),
    [
        ("PENDING", 0, Status.HELD),
        ("PENDING", 4294901758, Status.QUEUED),
        (["PENDING"], {"set": True, "infinite": False, "number": 0}, Status.HELD),
        ("RUNNING", 1, Status.RUNNING),
        (["RUNNING", "CONFIGURING"], 1, Status.RUNNING),
        ("COMPLETING", 0, Status.ENDING),
        (["PENDING", "COMPLETING"], 0, Status.ENDING),
        ("REQUEUE_HOLD", 0, Status.HELD),
        ("COMPLETED", 1, Status.GONE),
        (["FAILED"], 1, Status.GONE),
        ("NODE_FAIL", 1, Status.GONE),
    ],
)
def test_a_state_means_one_status(state: object, priority: object, status: Status) -> None:
    job = SlurmJob.from_reply({"job_id": 1, "job_state": state, "priority": priority})
    assert job.status is status


def test_gpus_of_a_job_are_counted_however_it_asked() -> None:
    assert SlurmJob.from_reply({"job_id": 1, "tres_per_job": "gres:gpu:12"}).gpus == 12
    assert SlurmJob.from_reply({"job_id": 1, "tres_per_node": "gres:gpu:4", "node_count": 3}).gpus == 12
    assert SlurmJob.from_reply({"job_id": 1, "tres_per_task": "gres:gpu:1", "tasks": 2}).per_task


@pytest.mark.parametrize(
    ("state", "flags", "usable"),
    [("idle", [], True), ("mixed", [], True), ("idle", ["DRAIN"], False), ("down", [], False),
     (["IDLE"], None, True), (["MIXED", "DRAIN"], None, False), ("idle", ["NOT_RESPONDING"], False)],
)  # fmt: skip
def test_a_machine_is_usable_unless_slurm_says_otherwise(state: object, flags: object, usable: bool) -> None:
    node = SlurmNode.from_reply({"name": "n1", "gres": "gpu:8(S:0-1)", "state": state, "state_flags": flags})
    assert (node.gpus, node.usable) == (8, usable)


def test_what_a_job_carries_is_read_back() -> None:
    request = JobRequest(model="bert", tenant="vision, and more")
    memory = Memory(arrival_s=3.0, served_s=1.5, declined_since_s=7.25, placement=(("n1", 3), ("n2", 1)))
    assert request_in(written(request)) == request
    assert memory_in(written(memory)) == memory


def test_the_bare_word_makes_a_job_ours_and_other_comments_do_not() -> None:
    assert request_in("slim") == JobRequest()
    assert request_in("slim {broken") == JobRequest()
    assert request_in("slimmer") is None
    assert request_in("") is None
    assert memory_in("somebody's note") == Memory()


def test_every_stage_knows_what_to_do_about_every_status() -> None:
    assert STEPS.keys() == {
        (stage, status) for stage in JobStage for status in Status if status is not Status.GONE
    }
