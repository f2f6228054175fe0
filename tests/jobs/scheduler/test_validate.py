"""What a scheduler keeps must agree: each way in which it may not is found, and told with the job's story."""

from collections.abc import Callable

import pytest

from jobs.workloads import job, scheduler
from slimsched.jobs.scheduler.messages import JobFinished, JobFoundRunning, JobSubmitted, PreemptJob
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.scheduler.waiting import CLAIMING, NEXT_PHASES, PHASES, RUNNING, STOPPING, WAITING
from slimsched.jobs.setting import POLICIES


def busy() -> JobScheduler:
    """A scheduler with gangs that run, one of them across racks, are stopped, claim GPUs and wait."""
    machine = scheduler(POLICIES.make("dally"), quotas={"x": 12})
    machine.handle(JobSubmitted(job=job("wide", 10, tenant="x")), now_s=0.0)
    for name in ("a", "b", "c"):
        machine.handle(JobSubmitted(job=job(name, 2)), now_s=0.0)
    commands = machine.handle(JobSubmitted(job=job("claims", 2)), now_s=40000.0)
    assert any(isinstance(command, PreemptJob) for command in commands)
    machine.handle(JobSubmitted(job=job("waits", 4, tenant="x")), now_s=40000.0)
    assert {one.phase for one in machine.jobs.values()} == {WAITING, CLAIMING, RUNNING, STOPPING}
    machine.validate()
    return machine


def lose_a_gpu(machine: JobScheduler) -> None:
    machine.free.by_machine[0] += 1


def miscount_free(machine: JobScheduler) -> None:
    machine.free.total += 1


def miscount_a_rack(machine: JobScheduler) -> None:
    machine.free.by_rack[0] += 1


def misplace_a_machine(machine: JobScheduler) -> None:
    machine.free._with[3] |= 1


def forget_a_running_job(machine: JobScheduler) -> None:
    machine.running.pop("a")


def keep_a_job_that_is_gone(machine: JobScheduler) -> None:
    machine.jobs.pop("a")


def forget_a_gang_that_crosses(machine: JobScheduler) -> None:
    machine.crossing.pop("wide")


def miscount_an_uplink(machine: JobScheduler) -> None:
    machine.free.crossing[1] += 1


def miscount_a_tenant(machine: JobScheduler) -> None:
    machine.tenant_gpus["x"] += 1


def drop_a_claim(machine: JobScheduler) -> None:
    machine.claims.open.clear()


def miscount_a_claim(machine: JobScheduler) -> None:
    machine.claims.open["claims"].missing["r0m0"] += 1


def miscount_who_waits(machine: JobScheduler) -> None:
    machine.waiting.size += 1


def let_nobody_be_least(machine: JobScheduler) -> None:
    machine.waiting.least = 1


def change_what_a_waiting_job_needs(machine: JobScheduler) -> None:
    machine.jobs["waits"].gpus = 3


def let_a_stopping_job_be_stopped(machine: JobScheduler) -> None:
    stopping = next(one for one in machine.running.values() if one.phase == STOPPING)
    stopping.ripeness = 1


def forget_whom_one_may_stop(machine: JobScheduler) -> None:
    machine.evictable._classes[0].total += 1


def forget_to_be_woken(machine: JobScheduler) -> None:
    machine.jobs["waits"].clock_s = 40000.0
    machine.jobs["waits"].timers = (1.0, 2.0)
    machine._arm_timer(machine.jobs["waits"], 40000.0)


def change_a_size_that_stays(machine: JobScheduler) -> None:
    machine.next_gpus["b"] = 1


@pytest.mark.parametrize(
    "spoil",
    [
        lose_a_gpu, miscount_free, miscount_a_rack, misplace_a_machine, forget_a_running_job,
        keep_a_job_that_is_gone, forget_a_gang_that_crosses, miscount_an_uplink, miscount_a_tenant,
        drop_a_claim, miscount_a_claim, miscount_who_waits, let_nobody_be_least,
        change_what_a_waiting_job_needs, let_a_stopping_job_be_stopped, forget_whom_one_may_stop,
        forget_to_be_woken, change_a_size_that_stays,
    ],
)  # fmt: skip
def test_what_does_not_agree_is_found(spoil: Callable[[JobScheduler], None]) -> None:
    machine = busy()
    spoil(machine)
    with pytest.raises(AssertionError):
        machine.validate()


def test_an_error_tells_what_the_job_went_through() -> None:
    machine = scheduler(POLICIES.make("fit-first"))
    machine.handle(JobSubmitted(job=job("a", 4)), now_s=5.0)
    with pytest.raises(AssertionError, match="r0m0 would have -3 of its 4 GPUs free") as raised:
        machine.handle(JobFoundRunning(job=job("b", 3), placement=(("r0m0", 3),)), now_s=7.0)
    (story,) = raised.value.__notes__
    assert "at 7.000 s the scheduler was told JobFoundRunning" in story
    assert "job 'b' (3 GPUs) came at 7.000 s" in story
    assert "1 jobs run, 0 wait, 12 GPUs are free" in story


def test_a_phase_that_may_not_follow_is_an_error_with_the_jobs_story() -> None:
    machine = scheduler(POLICIES.make("fit-first"))
    machine.handle(JobSubmitted(job=job("a", 4)), now_s=5.0)
    with pytest.raises(AssertionError, match=r"'a' \(4 GPUs\) .* running on r0m0×4; it cannot be claiming"):
        machine.jobs["a"].enter(CLAIMING)
    assert set(NEXT_PHASES) == set(range(len(PHASES)))
    machine.handle(JobFinished(job_id="a"), now_s=6.0)
    assert not machine.jobs
