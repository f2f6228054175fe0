"""Delay timers: when a job holds out, for what, and for how long."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.workloads import SMALL, encode, job, job_lists, news, scheduler, simulation
from slimsched.core.clock import Wake, WakeAt
from slimsched.jobs.domain import Tier
from slimsched.jobs.policies.dally import BenefitTuner, Dally, Tuner
from slimsched.jobs.scheduler.messages import JobFinished, JobSubmitted, StartJob
from slimsched.jobs.setting import POLICIES, manual


def fill(machine, names_and_gpus) -> None:
    """Occupy every machine but for a GPU here and there."""
    for name, gpus in names_and_gpus:
        commands = machine.handle(JobSubmitted(job=job(name, gpus)), now_s=0.0)
        assert isinstance(commands[0], StartJob)


def starts(commands) -> list[StartJob]:
    """The starts among commands."""
    return [command for command in commands if isinstance(command, StartJob)]


def test_a_job_holds_out_for_its_machine_then_its_rack_then_the_network() -> None:
    machine = scheduler(manual(100.0, 300.0))
    fill(machine, [("a", 3), ("b", 3), ("c", 3), ("d", 3)])
    commands = machine.handle(JobSubmitted(job=job("gang", 3)), now_s=10.0)
    assert not starts(commands)
    assert machine.explain("gang", now_s=10.0).allowed_tier == Tier.MACHINE
    assert WakeAt(at_s=110.0) in commands
    commands = machine.handle(Wake(), now_s=110.0)
    assert not starts(commands)
    assert machine.explain("gang", now_s=110.0).allowed_tier == Tier.RACK
    commands = machine.handle(Wake(), now_s=310.0)
    (start,) = starts(commands)
    assert SMALL.tier(start.placement) == Tier.NETWORK


def test_the_clock_runs_from_the_first_declined_offer_not_from_arrival() -> None:
    machine = scheduler(manual(100.0, 300.0))
    fill(machine, [("a", 4), ("b", 4), ("c", 4), ("d", 4)])
    assert not starts(machine.handle(JobSubmitted(job=job("gang", 3)), now_s=0.0))
    assert machine.explain("gang", now_s=5000.0).declined_offers == 0
    fill_later = machine.handle(JobFinished(job_id="a"), now_s=5000.0)
    assert starts(fill_later)[0].job_id == "gang"


def test_a_closer_offer_is_taken_at_once() -> None:
    machine = scheduler(manual(100.0, 300.0))
    fill(machine, [("a", 3), ("b", 3), ("c", 3), ("d", 3)])
    machine.handle(JobSubmitted(job=job("gang", 4)), now_s=10.0)
    (start,) = starts(machine.handle(JobFinished(job_id="c"), now_s=20.0))
    assert start.placement == (("r1m0", 4),)


def test_a_gang_larger_than_a_machine_has_no_machine_timer() -> None:
    machine = scheduler(manual(100.0, 300.0))
    fill(machine, [("a", 3), ("b", 3), ("c", 3), ("d", 3)])
    machine.handle(JobFinished(job_id="a"), now_s=1.0)
    machine.handle(JobSubmitted(job=job("gang", 6)), now_s=10.0)
    found = machine.explain("gang", now_s=10.0)
    assert found.allowed_tier == Tier.RACK
    assert found.timer_left_s == 300.0


@settings(max_examples=25, deadline=None)
@given(jobs=job_lists())
def test_timers_of_zero_equal_no_wait(jobs) -> None:
    zero = simulation(manual(0.0, 0.0), jobs).run()
    assert encode(zero) == encode(simulation(POLICIES.make("no-wait"), jobs).run())


@settings(max_examples=25, deadline=None)
@given(jobs=job_lists())
def test_endless_timers_equal_fully_consolidated(jobs) -> None:
    endless = simulation(Dally(Tuner(1e18, 1e18)), jobs).run()
    full = simulation(POLICIES.make("fully-consolidated"), jobs).run()
    assert starts([e for _, e in news(endless)]) == starts([e for _, e in news(full)])


@settings(max_examples=25, deadline=None)
@given(jobs=job_lists(largest=1), rack_s=st.floats(0.0, 1e5), more_s=st.floats(0.0, 1e5))
def test_jobs_of_one_gpu_do_not_depend_on_timers(jobs, rack_s, more_s) -> None:
    timed = simulation(manual(rack_s, rack_s + more_s), jobs).run()
    assert encode(timed) == encode(simulation(POLICIES.make("no-wait"), jobs).run())


def test_the_benefit_tuner_lets_sensitive_jobs_wait_longer() -> None:
    machine = scheduler(Dally(Tuner()))
    for name, model in (("eager", "resnet50"), ("patient", "lm")):
        machine.handle(JobSubmitted(job=job(name, 4, model=model)), now_s=0.0)
    tuner = BenefitTuner()
    eager = tuner.timers(machine.jobs["eager"], 0.0, 0.0)
    patient = tuner.timers(machine.jobs["patient"], 0.0, 0.0)
    assert patient[0] > eager[0] > 0.0
    assert patient[1] > eager[1]


def test_the_benefit_tuner_waits_longer_in_a_backlog_and_for_busy_uplinks() -> None:
    machine = scheduler(Dally(Tuner()))
    machine.handle(JobSubmitted(job=job("gang", 4)), now_s=0.0)
    gang, tuner = machine.jobs["gang"], BenefitTuner()
    calm = tuner.timers(gang, 0.0, 0.0)
    assert tuner.timers(gang, 2.0, 0.0)[0] > calm[0]
    assert tuner.timers(gang, 0.0, 64.0)[1] > calm[1]


def test_the_benefit_tuner_learns_from_runs_that_lost_more_than_predicted() -> None:
    machine = scheduler(Dally(Tuner()))
    machine.handle(JobSubmitted(job=job("gang", 4)), now_s=0.0)
    gang, tuner = machine.jobs["gang"], BenefitTuner()
    before = tuner.slowdown(gang, Tier.NETWORK)
    for _ in range(20):
        tuner.ran(gang, Tier.NETWORK, run_s=100000.0, served_s=1000.0)
    assert tuner.slowdown(gang, Tier.NETWORK) > 2 * before
