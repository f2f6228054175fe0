"""The learned order of jobs: what it keeps, and that training makes it better."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from jobs.scheduler.test_policies import check
from jobs.workloads import SMALL, encode, job, job_lists, simulation
from slimsched.cli.jobs.app import app
from slimsched.core.config import SlimError
from slimsched.jobs.domain import Job
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated.comparison import JobSetting
from slimsched.jobs.telemetry import histories
from slimsched.serving.learning.ppo import UpdateOptions

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "rivals"))

import learn_order
from learn_order import (
    Decision,
    JobTrainer,
    JobTraining,
    delays_s,
    generated_windows,
    resume_training,
    save_training,
    train,
)
from learned_order import SHIFTS, Features, LearnedOrder, write_order

RL = f"{Path(learn_order.__file__).with_name('learned_order.py')}:Rl"

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
    policy = POLICIES.make(RL)
    first = policy.probabilities(NOTHING)
    assert first.sum() == pytest.approx(1.0)
    assert (first == POLICIES.make(RL).probabilities(NOTHING)).all()


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
    save_training(tmp_path / "run.pt", first, [first.step()])
    second = JobTrainer(sensitive_and_long, options, seed=1)
    assert len(resume_training(tmp_path / "run.pt", second)) == 1
    second.train(lambda point: None)
    for name, value in whole.weights().items():
        assert value == pytest.approx(second.weights()[name], abs=1e-7)


def on_generated(jobs: int) -> JobTrainer:
    """A trainer on windows of generated jobs, for one update."""
    options = JobTraining(updates=1, jobs=jobs)
    return JobTrainer(generated_windows(SMALL.machines, "small", options), options, seed=0)


def test_an_order_is_trained_and_compared_from_the_command_line(tmp_path) -> None:
    out = tmp_path / "order.json"
    ratio = train(on_generated(60), out, cluster="small", seed=0, resume=tmp_path / "run.pt")
    assert json.loads(out.read_text())["jct_ratio"] == pytest.approx(ratio, abs=1e-4)
    assert (tmp_path / "run.pt").is_file()
    policies = f"{RL},dally,{RL}:{out},{RL}:file={out}"
    words = ["--cluster", "racks-64", "--jobs", "60", "--policies", policies, "--workers", "1", "--json"]
    rows = CliRunner().invoke(app, ["compare", *words])
    assert [row["policy"] for row in json.loads(rows.stdout)] == policies.split(",")


def test_training_where_no_job_ever_waits_says_what_to_change(tmp_path) -> None:
    with pytest.raises(SlimError, match="give more jobs"):
        train(on_generated(1), tmp_path / "o.json", cluster="small", seed=0)


def test_an_order_that_cannot_be_read_is_refused_in_one_line(tmp_path) -> None:
    bent = tmp_path / "bent.json"
    write_order(bent, {"input.weight": np.zeros((2, 2))}, {})
    for name in (f"{RL}:{tmp_path}/none.json", f"{RL}:{bent}", f"{RL}:/etc/passwd", "best"):
        with pytest.raises(SlimError) as caught:
            POLICIES.make(name)
        assert "\n" not in str(caught.value)
