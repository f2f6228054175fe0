"""Ripening: every time that comes is told once, and whom one may stop is counted as if one looked at each."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.workloads import SMALL, job, job_lists, scheduler, simulation
from slimsched.jobs.scheduler.messages import JobFoundRunning, JobSubmitted
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.scheduler.waiting import RUNNING, JobState, JobTimes
from slimsched.jobs.setting import POLICIES


def running(count: int) -> list[JobState]:
    """Jobs that run."""
    machine = scheduler(POLICIES.make("fit-first"))
    for number in range(count):
        machine.handle(JobSubmitted(job=job(str(number), 1)), now_s=0.0)
    return list(machine.running.values())


def counted_one_by_one(machine: JobScheduler, for_class: int, now_s: float) -> list[int]:
    """GPUs on each machine of the running jobs that may be stopped for a class by now."""
    by_machine = [0] * len(SMALL.machines)
    for one in machine.running.values():
        if one.phase == RUNNING and machine.policy.evictable_at_s(one, for_class, now_s) <= now_s:
            for place, gpus in one.spots:
                by_machine[place] += gpus
    return by_machine


@given(
    times_s=st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=16),
    looks_s=st.lists(st.floats(0.0, 6000.0), max_size=8),
)
def test_each_time_is_told_at_the_first_look_after_it(times_s, looks_s) -> None:
    jobs = running(len(times_s))
    times = JobTimes()
    for one, at_s in zip(jobs, times_s, strict=True):
        times.add(at_s, one, 0)
    told: dict[str, float] = {}
    for now_s in [*sorted(looks_s), 6000.0]:
        for one, _ in times.due(now_s):
            assert one.id not in told
            told[one.id] = now_s
    looks = [*sorted(looks_s), 6000.0]
    assert told == {
        one.id: min(look_s for look_s in looks if look_s >= at_s)
        for one, at_s in zip(jobs, times_s, strict=True)
    }


def test_a_job_that_moved_on_is_not_told() -> None:
    stays, goes = running(2)
    times = JobTimes()
    for at_s in (100.0, 3000.0):
        times.add(at_s, stays, 0)
        times.add(at_s, goes, 0)
    assert [one for one, _ in times.due(100.0)] == [stays, goes]
    goes.epoch += 1
    assert [one for one, _ in times.due(1e9)] == [stays]
    assert times.due(2e9) == []


@settings(max_examples=40)
@given(jobs=job_lists(), looks_s=st.lists(st.floats(0.0, 60000.0), min_size=1, max_size=5))
def test_whom_one_may_stop_is_counted_as_if_one_looked_at_each(jobs, looks_s) -> None:
    run = simulation(POLICIES.make("dally"), jobs)
    machine = run.scheduler
    for now_s in sorted(looks_s):
        run.run(until_s=now_s)
        machine.evictable._ripen(now_s)
        for ripe in machine.evictable._classes:
            expected = counted_one_by_one(machine, ripe.number, now_s)
            assert ripe.by_machine == expected
            assert ripe.total == sum(expected)
            assert ripe.by_rack == [sum(expected[:2]), sum(expected[2:])]


def test_a_gang_that_slurm_split_otherwise_is_counted_once() -> None:
    machine = scheduler(POLICIES.make("dally"))
    gang = job("gang", 6)
    machine.handle(JobSubmitted(job=gang), now_s=0.0)
    machine.handle(JobFoundRunning(job=gang, placement=(("r0m0", 3), ("r0m1", 3))), now_s=1.0)
    machine.evictable._ripen(1e9)
    assert machine.evictable._classes[0].by_machine == [3, 3, 0, 0]
