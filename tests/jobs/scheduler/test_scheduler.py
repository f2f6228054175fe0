"""The scheduler fed by hand: quotas, reservations, restarts, failures, explanations."""

import pytest

from jobs.workloads import SMALL, job, scheduler, simulation
from slimsched.core.clock import Wake
from slimsched.core.config import SlimError
from slimsched.jobs.domain import Tier, Topology
from slimsched.jobs.scheduler.messages import (
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    PreemptJob,
    StartFailed,
    StartJob,
)
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.waiting import DemandError
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.telemetry import histories


def kinds(commands, kind) -> list:
    """The commands of one kind."""
    return [command for command in commands if isinstance(command, kind)]


def test_strict_fifo_lets_nobody_pass() -> None:
    machine = scheduler(POLICIES.make("fifo"))
    machine.handle(JobSubmitted(job=job("a", 10)), now_s=0.0)
    machine.handle(JobSubmitted(job=job("b", 10)), now_s=1.0)
    assert not kinds(machine.handle(JobSubmitted(job=job("c", 1)), now_s=2.0), StartJob)
    assert machine.explain("c", now_s=2.0).reason == "an earlier job is first in line"
    started = kinds(machine.handle(JobFinished(job_id="a"), now_s=3.0), StartJob)
    assert [start.job_id for start in started] == ["b", "c"]


def test_a_tenant_stays_within_its_quota_and_others_pass() -> None:
    machine = scheduler(POLICIES.make("fit-first"), quotas={"x": 4})
    assert kinds(machine.handle(JobSubmitted(job=job("a", 4, tenant="x")), now_s=0.0), StartJob)
    assert not kinds(machine.handle(JobSubmitted(job=job("b", 1, tenant="x")), now_s=1.0), StartJob)
    assert "quota" in machine.explain("b", now_s=1.0).reason
    assert kinds(machine.handle(JobSubmitted(job=job("c", 4, tenant="y")), now_s=2.0), StartJob)
    assert kinds(machine.handle(JobFinished(job_id="a"), now_s=3.0), StartJob)[0].job_id == "b"


@pytest.mark.parametrize(("gpus", "tenant"), [(17, ""), (0, ""), (5, "x")])
def test_an_impossible_demand_is_refused_with_a_remedy(gpus, tenant) -> None:
    machine = scheduler(POLICIES.make("dally"), quotas={"x": 4})
    with pytest.raises(DemandError, match=r"drop the job|raise the quota"):
        machine.handle(JobSubmitted(job=job("big", gpus, tenant=tenant)), now_s=0.0)


def test_a_sensitive_gang_evicts_the_smallest_set_in_one_machine() -> None:
    machine = scheduler(POLICIES.make("dally"))
    for name in ("a", "b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 4)), now_s=0.0)
    commands = machine.handle(JobSubmitted(job=job("new", 4)), now_s=7200.0)
    (preempt,) = kinds(commands, PreemptJob)
    assert not kinds(commands, StartJob)
    commands = machine.handle(JobPreempted(job_id=preempt.job_id, served_s=7000.0), now_s=7230.0)
    assert kinds(commands, StartJob)[0].job_id == "new"


def test_nobody_is_evicted_when_the_gang_would_not_fit_then() -> None:
    machine = scheduler(POLICIES.make("dally"))
    machine.handle(JobSubmitted(job=job("small", 1)), now_s=0.0)
    for name in ("b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 4)), now_s=7000.0)
    commands = machine.handle(JobSubmitted(job=job("wide", 8)), now_s=7200.0)
    assert not kinds(commands, PreemptJob)
    assert not machine.explain("wide", now_s=7200.0).victims_considered


def test_a_victim_that_finishes_first_makes_room_all_the_same() -> None:
    machine = scheduler(POLICIES.make("dally"))
    for name in ("a", "b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 4)), now_s=0.0)
    (preempt,) = kinds(machine.handle(JobSubmitted(job=job("new", 4)), now_s=7200.0), PreemptJob)
    commands = machine.handle(JobFinished(job_id=preempt.job_id), now_s=7210.0)
    assert kinds(commands, StartJob)[0].job_id == "new"


def test_a_starving_gang_gets_a_reservation() -> None:
    class Reserving(Policy):
        reserve_after_s = 600.0
        quantum_s = 60.0

        def key(self, job, now_s):
            return (job.gpus, job.job.arrival_s)

    small = [job(f"s{i}", 4, at_s=100.0 * i, service_s=1000.0, model="resnet50") for i in range(40)]
    jobs = [*small, job("wide", 16, at_s=50.0, service_s=100.0)]
    found = histories(simulation(Reserving(), jobs).run())
    assert found["wide"].finished_s < max(found[one.id].finished_s for one in small)
    assert all(history.finished_s is not None for history in found.values())


def test_a_lost_machine_is_emptied_and_used_again_when_it_is_back() -> None:
    machine = scheduler(POLICIES.make("fit-first"))
    machine.handle(JobSubmitted(job=job("a", 4)), now_s=0.0)
    (preempt,) = kinds(machine.handle(NodeDown(machine="r0m0"), now_s=10.0), PreemptJob)
    (start,) = kinds(machine.handle(JobPreempted(job_id=preempt.job_id, served_s=0.0), now_s=11.0), StartJob)
    assert start.placement == (("r0m1", 4),)
    machine.handle(JobSubmitted(job=job("b", 12)), now_s=12.0)
    assert machine.explain("b", now_s=12.0).state == "waiting"
    assert kinds(machine.handle(NodeUp(machine="r0m0"), now_s=13.0), StartJob)[0].job_id == "b"


def test_a_gang_does_not_move_to_a_machine_that_was_lost_meanwhile() -> None:
    machine = scheduler(POLICIES.make("gandiva"))
    for name in ("a", "b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 3, service_s=1e5)), now_s=0.0)
    machine.handle(JobSubmitted(job=job("gang", 2, service_s=1e5)), now_s=1.0)
    machine.handle(JobFinished(job_id="d"), now_s=2.0)
    (move,) = kinds(machine.handle(Wake(), now_s=601.0), PreemptJob)
    assert move.job_id == "gang"
    machine.handle(NodeDown(machine="r1m1"), now_s=602.0)
    commands = machine.handle(JobPreempted(job_id="gang", served_s=10.0), now_s=631.0)
    assert all(name != "r1m1" for start in kinds(commands, StartJob) for name, _ in start.placement)


def test_gangs_that_must_cross_racks_keep_off_each_others_uplinks() -> None:
    wide = Topology.grid(racks=4, machines_per_rack=1, gpus_per_machine=4)
    calm = scheduler(POLICIES.make("dally"), wide)
    calm.handle(JobSubmitted(job=job("a", 6)), now_s=0.0)
    (start,) = kinds(calm.handle(JobSubmitted(job=job("b", 6)), now_s=1.0), StartJob)
    assert {name for name, _ in start.placement} == {"r2m0", "r3m0"}
    careless = scheduler(POLICIES.make("fit-first"), wide)
    careless.handle(JobSubmitted(job=job("small", 1)), now_s=0.0)
    careless.handle(JobSubmitted(job=job("a", 6)), now_s=0.0)
    assert max(careless.free.crossing) == 1


def test_gangs_that_share_uplinks_part_when_there_is_room() -> None:
    wide = Topology.grid(racks=5, machines_per_rack=1, gpus_per_machine=4)
    machine = scheduler(POLICIES.make("dally"), wide)
    for name in ("d", "e"):
        machine.handle(JobSubmitted(job=job(name, 4)), now_s=0.0)
    for name in ("a", "b"):
        machine.handle(JobSubmitted(job=job(name, 6)), now_s=0.0)
    assert max(machine.free.crossing) == 2
    for name in ("d", "e"):
        machine.handle(JobFinished(job_id=name), now_s=10.0)
    (move,) = kinds(machine.handle(Wake(), now_s=1200.0), PreemptJob)
    assert move.reason == "moves to quiet uplinks"
    machine.handle(JobPreempted(job_id=move.job_id, served_s=900.0), now_s=1230.0)
    assert max(machine.free.crossing) == 1


def test_a_start_that_failed_is_tried_again() -> None:
    machine = scheduler(POLICIES.make("fit-first"))
    machine.handle(JobSubmitted(job=job("a", 4)), now_s=0.0)
    commands = machine.handle(StartFailed(job_id="a", reason="no answer"), now_s=1.0)
    assert kinds(commands, StartJob)[0].job_id == "a"


def test_a_scheduler_rebuilt_from_what_runs_and_waits_goes_on_the_same_way() -> None:
    first = scheduler(POLICIES.make("fully-consolidated"))
    jobs = [job("a", 4), job("b", 4), job("c", 4), job("d", 3), job("e", 4, at_s=5.0)]
    placed = {}
    for one in jobs:
        for start in kinds(first.handle(JobSubmitted(job=one), now_s=one.arrival_s), StartJob):
            placed[start.job_id] = start.placement
    second = scheduler(POLICIES.make("fully-consolidated"))
    for one in jobs:
        if one.id in placed:
            second.handle(JobFoundRunning(job=one, placement=placed[one.id]), now_s=10.0)
    second.handle(JobSubmitted(job=jobs[-1]), now_s=10.0)
    assert second.free.by_machine == first.free.by_machine
    for machine in (first, second):
        (start,) = kinds(machine.handle(JobFinished(job_id="b"), now_s=20.0), StartJob)
        assert start == StartJob(job_id="e", placement=placed["b"])


def test_a_cancelled_waiting_job_is_forgotten() -> None:
    machine = scheduler(POLICIES.make("fit-first"))
    machine.handle(JobSubmitted(job=job("a", 16)), now_s=0.0)
    machine.handle(JobSubmitted(job=job("b", 16)), now_s=1.0)
    machine.handle(JobFinished(job_id="b"), now_s=2.0)
    assert not kinds(machine.handle(JobFinished(job_id="a"), now_s=3.0), StartJob)
    with pytest.raises(SlimError, match="unknown job 'b'"):
        machine.explain("b", now_s=4.0)


def test_a_waiting_job_says_why() -> None:
    machine = scheduler(POLICIES.make("manual:100:300"))
    for name in ("a", "b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 3)), now_s=0.0)
    machine.handle(JobSubmitted(job=job("gang", 4)), now_s=10.0)
    found = machine.explain("gang", now_s=40.0)
    assert (found.state, found.waited_s, found.queue_position) == ("waiting", 30.0, 1)
    assert (found.allowed_tier, found.next_tier, found.timer_left_s) == (Tier.MACHINE, Tier.RACK, 70.0)
    assert found.nearest is not None
    assert (found.nearest.name, found.nearest.free_gpus, found.nearest.missing_gpus) == ("r0m0", 1, 3)
    assert "spread too far" in found.reason
    assert "runs on" in machine.explain("a", now_s=40.0).reason


def test_early_and_repeated_wakes_do_no_harm() -> None:
    machine = scheduler(POLICIES.make("manual:100:300"))
    for name in ("a", "b", "c", "d"):
        machine.handle(JobSubmitted(job=job(name, 3)), now_s=0.0)
    machine.handle(JobSubmitted(job=job("gang", 4)), now_s=10.0)
    for at_s in (11.0, 12.0, 12.0):
        assert not kinds(machine.handle(Wake(), now_s=at_s), StartJob)
    assert SMALL.floor(4) == Tier.MACHINE
