"""The learned order of jobs: what it keeps, and that training makes it better."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from jobs.scheduling.test_policies import check
from jobs.workloads import SMALL, encode, job, job_lists, simulation
from slimsched.cli.jobs.app import app
from slimsched.jobs.domain.job import Job
from slimsched.jobs.execution.order_file import write_order
from slimsched.jobs.execution.policies import POLICIES
from slimsched.jobs.execution.simulated.comparison import JobSetting
from slimsched.jobs.learning.checkpoint import resume_training, save_training
from slimsched.jobs.learning.episode import Decision, delays_s
from slimsched.jobs.learning.ppo import JobTrainer, JobTraining
from slimsched.jobs.scheduling.policies.learned_order import SHIFTS, Features, LearnedOrder
from slimsched.jobs.telemetry.runs import histories
from slimsched.kernel.errors import SlimError
from slimsched.kernel.ppo import UpdateOptions

NOTHING = Features(*[0.0] * len(Features._fields))
TINY = JobTraining(
    updates=8,
    windows=2,
    hidden=8,
    check_every=8,
    checks=2,
    ppo=UpdateOptions(learning_rate=0.02, minibatch=128),
)


def sensitive_and_long(seed: int) -> tuple[list[Job], JobSetting]:
    """Sensitive jobs of about an hour, which dally would start first, among others of a minute."""
    rng = np.random.default_rng(seed)
    long = [job(f"l{i}", 4, service_s=float(rng.uniform(3000.0, 4000.0)), model="lm") for i in range(20)]
    short = [job(f"s{i}", 4, service_s=60.0, model="resnet50") for i in range(40)]
    return long + short, JobSetting(machines=SMALL.machines, cluster="small")


def weights(rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
    """Drawn weights, or zeros."""
    shapes = {
        "input.weight": (4, len(Features._fields)), "input.bias": (4,), "hidden.weight": (4, 4),
        "hidden.bias": (4,), "head.weight": (len(SHIFTS), 4), "head.bias": (len(SHIFTS),),
    }  # fmt: skip
    return {
        name: np.zeros(shape) if rng is None else rng.normal(size=shape) for name, shape in shapes.items()
    }


@settings(max_examples=12, deadline=None)
@given(jobs=job_lists())
def test_zero_weights_are_dally(jobs) -> None:
    learned = simulation(LearnedOrder(weights()), jobs).run()
    assert encode(learned) == encode(simulation(POLICIES.make("dally"), jobs).run())


@settings(max_examples=12, deadline=None)
@given(jobs=job_lists())
def test_whatever_the_weights_the_contract_holds(jobs) -> None:
    drawn = weights(np.random.default_rng(0))
    check(simulation(LearnedOrder(drawn), jobs).run(), jobs)


def test_probabilities_do_not_depend_on_when_they_are_asked_for() -> None:
    policy = POLICIES.make("rl")
    assert isinstance(policy, LearnedOrder)
    first = policy.probabilities(NOTHING)
    assert first.sum() == pytest.approx(1.0)
    assert (first == POLICIES.make("rl").probabilities(NOTHING)).all()


def test_a_decision_costs_its_own_delay_and_that_of_the_others() -> None:
    jobs = [job(name, 16, service_s=100.0, model="") for name in ("first", "second", "third")]
    found = histories(simulation(POLICIES.make("fifo"), jobs).run())
    decisions = [
        Decision(
            job_id=name,
            at_s=0.0,
            served_s=0.0,
            features=NOTHING,
            action=3,
            surprise=0.0,
            log_probability=0.0,
        )
        for name in ("first", "second", "third")
    ]
    own_s, others_s = delays_s(decisions, found, 16)
    assert own_s == pytest.approx([0.0, 100.0, 200.0])
    assert others_s == pytest.approx([200.0, 100.0, 0.0])


def test_training_learns_that_sensitive_jobs_are_long() -> None:
    trainer = JobTrainer(sensitive_and_long, TINY, seed=0)
    assert trainer.check() == 1.0
    trainer.train(lambda point: None)
    assert trainer.best[0] < 0.8


def test_a_resumed_training_ends_with_the_same_weights(tmp_path) -> None:
    options = JobTraining(updates=2, windows=1, hidden=8, check_every=2, checks=1)
    whole = JobTrainer(sensitive_and_long, options, seed=1)
    whole.train(lambda point: None)
    first = JobTrainer(sensitive_and_long, options, seed=1)
    save_training(tmp_path / "run.safetensors", first, [first.step()])
    second = JobTrainer(sensitive_and_long, options, seed=1)
    assert len(resume_training(tmp_path / "run.safetensors", second)) == 1
    second.train(lambda point: None)
    for name, value in whole.weights().items():
        assert value == pytest.approx(second.weights()[name], abs=1e-7)


def test_an_order_is_trained_and_compared_from_the_command_line(tmp_path) -> None:
    out = tmp_path / "order.json"
    small = ["--cluster", "racks-64", "--jobs", "60"]
    told = CliRunner().invoke(app, ["train", *small, "--updates", "1", "--out", str(out), "--json"])
    assert json.loads(told.stdout)["written"] == str(out)
    policies = f"rl,dally,rl:{out},rl:file={out}"
    rows = CliRunner().invoke(app, ["compare", *small, "--policies", policies, "--workers", "1", "--json"])
    assert [row["policy"] for row in json.loads(rows.stdout)] == policies.split(",")


def test_training_where_no_job_ever_waits_says_what_to_change(tmp_path) -> None:
    with pytest.raises(SlimError, match="give more jobs"):
        CliRunner().invoke(
            app,
            ["train", "--jobs", "10", "--updates", "1", "--out", str(tmp_path / "o.json")],
            catch_exceptions=False,
        )


def test_an_order_that_cannot_be_read_is_refused_in_one_line(tmp_path) -> None:
    bent = tmp_path / "bent.json"
    write_order(bent, {"input.weight": np.zeros((2, 2))}, {})
    for name in (f"rl:{tmp_path}/none.json", f"rl:{bent}", "best"):
        with pytest.raises(SlimError) as caught:
            POLICIES.make(name)
        assert "\n" not in str(caught.value)
