"""The simulator: pace, contention, checkpoints and failures."""

import pytest

from jobs.workloads import SMALL, job, simulation
from slimsched.jobs.domain import FABRICS, Tier
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated.cluster import Checkpoint, Failure, RunningGang, SharedLinks
from slimsched.jobs.telemetry import histories, summarize
from slimsched.jobs.traces.models import TRAINING_MODELS

CONGESTED = Sensitivity(topology=SMALL, fabric=FABRICS["congested"], models=TRAINING_MODELS)


def finish_s(policy, jobs, topology=SMALL, **more) -> dict[str, float]:
    """When each job finished."""
    found = histories(simulation(POLICIES.make(policy), jobs, topology, **more).run())
    return {name: history.finished_s for name, history in found.items()}


def test_a_job_on_one_machine_takes_its_ideal_time() -> None:
    assert finish_s("fit-first", [job("a", 4, service_s=100.0)]) == {"a": pytest.approx(100.0)}


def test_a_gang_across_racks_is_slowed_by_its_sensitivity() -> None:
    blockers = [job(f"b{i}", 3, service_s=10000.0, model="resnet50") for i in range(4)]
    found = finish_s("fit-first", [*blockers, job("gang", 2, at_s=1.0, service_s=100.0, model="bert")])
    slow = CONGESTED.traits(job("gang", 2, model="bert")).slow
    assert found["gang"] - 1.0 == pytest.approx(100.0 * slow[Tier.RACK], rel=1e-6)


def test_gangs_that_share_uplinks_slow_each_other_down_and_recover() -> None:
    links = SharedLinks(CONGESTED)
    first = RunningGang(job("a", 2), (("r0m0", 1), ("r1m0", 1)), 0.0, 0.0, 100.0)
    second = RunningGang(job("b", 2), (("r0m1", 1), ("r1m1", 1)), 0.0, 0.0, 100.0)
    links.settle(links.join(first))
    alone_s = first.iteration_s
    links.settle(links.join(second))
    assert first.iteration_s > 1.5 * alone_s
    assert second.iteration_s == pytest.approx(first.iteration_s, rel=0.1)
    links.settle(links.leave(second))
    assert first.iteration_s == pytest.approx(alone_s, rel=1e-6)


def test_gangs_in_different_racks_do_not_meet() -> None:
    links = SharedLinks(CONGESTED)
    first = RunningGang(job("a", 6), (("r0m0", 4), ("r0m1", 2)), 0.0, 0.0, 100.0)
    second = RunningGang(job("b", 6), (("r1m0", 4), ("r1m1", 2)), 0.0, 0.0, 100.0)
    links.settle(links.join(first))
    alone_s = first.iteration_s
    assert links.join(second) == {second: None}
    assert first.iteration_s == alone_s


def test_crossing_racks_costs_nothing_on_a_fast_fabric_and_much_on_a_congested_one() -> None:
    jobs = [job(f"b{i}", 3, service_s=10000.0, model="resnet50") for i in range(4)]
    jobs.append(job("gang", 4, at_s=1.0, service_s=100.0))
    fast = finish_s("no-wait", jobs, network="fast")["gang"] - 1.0
    congested = finish_s("no-wait", jobs, network="congested")["gang"] - 1.0
    assert fast < 200.0
    assert congested > 1000.0


def test_a_preempted_job_pays_for_its_checkpoint_and_loses_no_work() -> None:
    jobs = [job(f"long{i}", 4, service_s=20000.0) for i in range(4)] + [job("short", 4, at_s=5000.0)]
    checkpoint = Checkpoint(save_s=30.0, restore_s=40.0)
    driven = simulation(POLICIES.make("dally"), jobs, checkpoint=checkpoint)
    found = histories(driven.run())
    (victim,) = [history for history in found.values() if history.preemptions]
    assert found["short"].runs[0].start_s == 5030.0
    assert victim.runs[0].served_s == pytest.approx(5000.0)
    assert victim.finished_s == pytest.approx(5130.0 + 40.0 + 15000.0)


def test_a_lost_machine_costs_the_work_since_the_last_checkpoint() -> None:
    checkpoint = Checkpoint(save_s=30.0, restore_s=30.0, interval_s=1000.0)
    failures = [Failure(machine="r0m0", at_s=2500.0, repair_s=100.0)]
    found = histories(
        simulation(
            POLICIES.make("fit-first"),
            [job("a", 4, service_s=5000.0)],
            failures=failures,
            checkpoint=checkpoint,
        ).run()
    )
    assert found["a"].runs[0].served_s == 2000.0
    assert found["a"].runs[1].placement != found["a"].runs[0].placement
    assert found["a"].finished_s == pytest.approx(2500.0 + 30.0 + 3000.0)


def test_a_summary_counts_what_the_log_says() -> None:
    jobs = [job("a", 4, service_s=100.0), job("b", 16, at_s=50.0, service_s=100.0)]
    driven = simulation(POLICIES.make("fit-first"), jobs)
    summary = summarize(
        histories(driven.run()),
        policy="fit-first",
        sensitivity=driven.sensitivity,
        save_s=30.0,
        restore_s=30.0,
        events=len(driven.log),
        wall_s=1.0,
    )
    assert summary.makespan_s == pytest.approx(200.0)
    assert summary.jct_mean_s == pytest.approx(125.0)
    assert summary.wait_mean_s == pytest.approx(25.0)
    assert summary.makespan_bound_s == pytest.approx(150.0)
    assert summary.utilization == pytest.approx((4 * 100 + 16 * 100) / (16 * 200))
    assert summary.excess_comm == pytest.approx(0.0, abs=1e-6)
    assert summary.events == 4
