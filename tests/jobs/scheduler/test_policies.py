"""What every policy must keep, whatever it decides."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.workloads import SMALL, SPECS, encode, job_lists, news, simulation
from slimsched.core.config import SlimError
from slimsched.jobs.domain import gpus_in
from slimsched.jobs.scheduler.messages import JobFinished, JobPreempted, PreemptJob, StartJob
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated.cluster import Checkpoint, Failure
from slimsched.jobs.traces.models import TRAINING_MODELS

CAPACITY = {machine.name: machine.gpus for machine in SMALL.machines}


def check(log, jobs, *, resizes: bool = False) -> None:
    """No GPU is double-booked, gangs are whole, every job finishes exactly once."""
    by_id = {job.id: job for job in jobs}
    used: Counter[str] = Counter()
    where: dict[str, tuple] = {}
    finished: Counter[str] = Counter()
    assert [entry[0] for entry in log] == sorted(entry[0] for entry in log)
    for _, entry in news(log):
        if isinstance(entry, StartJob):
            assert entry.job_id not in where
            job = by_id[entry.job_id]
            sizes = TRAINING_MODELS[job.model].sizes(job.gpus) if resizes else ((job.gpus, 1.0),)
            assert gpus_in(entry.placement) in dict(sizes)
            where[entry.job_id] = entry.placement
            for name, gpus in entry.placement:
                used[name] += gpus
                assert used[name] <= CAPACITY[name]
        elif isinstance(entry, JobFinished | JobPreempted):
            for name, gpus in where.pop(entry.job_id):
                used[name] -= gpus
            finished[entry.job_id] += isinstance(entry, JobFinished)
    assert finished == dict.fromkeys(by_id, 1)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=12, deadline=None)
@given(jobs=job_lists())
def test_gangs_are_whole_gpus_single_and_every_job_finishes_once(name, jobs) -> None:
    policy = POLICIES.make(name)
    check(simulation(policy, jobs).run(), jobs, resizes=policy.resizes)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=6, deadline=None)
@given(
    jobs=job_lists(),
    at_s=st.lists(st.floats(0.0, 20000.0), min_size=4, max_size=4),
    repair_s=st.floats(1.0, 5000.0),
)
def test_lost_machines_lose_no_job(name, jobs, at_s, repair_s) -> None:
    failures = [
        Failure(machine=machine.name, at_s=when, repair_s=repair_s)
        for machine, when in zip(SMALL.machines, at_s, strict=True)
    ]
    policy = POLICIES.make(name)
    driven = simulation(policy, jobs, failures=failures)
    check(driven.run(), jobs, resizes=policy.resizes)
    books = driven.scheduler
    assert not books.jobs
    assert not books.running
    assert not books.spread
    assert not books.claims.open
    assert not books.waiting.size
    down = sum(machine.gpus for machine in SMALL.machines if machine.name in books.down)
    assert books.free.total == SMALL.gpus - down


@pytest.mark.parametrize("name", ["dally", "tiresias", "srtf", "gandiva", "themis"])
@settings(max_examples=25, deadline=None)
@given(jobs=job_lists())
def test_a_job_is_preempted_only_for_one_that_then_starts(name, jobs) -> None:
    save_s = 30.0
    log = simulation(POLICIES.make(name), jobs, checkpoint=Checkpoint(save_s=save_s)).run()
    starts = {(at_s, entry.job_id) for at_s, entry in news(log) if isinstance(entry, StartJob)}
    for at_s, entry in news(log):
        if isinstance(entry, PreemptJob):
            waiting = entry.reason.removeprefix("makes room for job ")
            who = entry.job_id if waiting == entry.reason else waiting
            assert any(job_id == who and at_s <= when <= at_s + save_s for when, job_id in starts)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=5, deadline=None)
@given(jobs=job_lists())
def test_the_same_jobs_give_the_same_log(name, jobs) -> None:
    first = encode(simulation(POLICIES.make(name), jobs).run())
    assert first == encode(simulation(POLICIES.make(name), jobs).run())


@settings(max_examples=15, deadline=None)
@given(jobs=job_lists())
def test_a_log_replayed_into_a_fresh_scheduler_gives_the_same_commands(jobs) -> None:
    driven = simulation(POLICIES.make("dally"), jobs)
    log = driven.run()
    fresh = simulation(POLICIES.make("dally"), jobs).scheduler
    for at_s, event, commands in log:
        assert fresh.handle(event, now_s=at_s) == commands


@pytest.mark.parametrize(
    "name", ["best", "manual:1", "manual:5:1", "manual:a:b", "manual:rack_s=1", "manual:1:2:3", "fifo:1"]
)
def test_an_unknown_policy_is_refused_in_one_line(name) -> None:
    with pytest.raises(SlimError) as caught:
        POLICIES.make(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
