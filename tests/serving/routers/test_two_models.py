"""`goal` with two models in simulation: near the joint bound, floors kept, nobody starves."""

from pathlib import Path

import pytest

from benches import benchmark
from served import CONFIG
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate
from stamped import stamped_folder

two_models = benchmark("two_models")


@pytest.mark.parametrize("name", ["laptop", pytest.param("paper", marks=pytest.mark.slow)])
@pytest.mark.parametrize("weight", [pytest.param(1.0, marks=pytest.mark.slow), 3.0])
def test_two_models_get_nearly_all_that_the_joint_bound_allows(name: str, weight: float) -> None:
    row = two_models.measure(name, 0.8, weight=weight, seeds=1, seconds=4.0)
    assert row.share > 0.98
    assert min(row.answered) > 0.95, "no model starves"


def scenario(folder: Path, rate_per_s: float, goals: dict[str, str], weights: dict[str, float]) -> Scenario:
    sections = ""
    for name, goal in goals.items():
        stamped_folder(folder / name, stamp=1.0, macs=20_000_000)
        sections += f'[[model]]\nsource = "{name}"\ngoal = "{goal}"\nweight = {weights.get(name, 1.0)}\n'
    load = f"rate_per_s = {rate_per_s}\nseconds = 12.0\nwarmup_s = 4.0\n"
    text = CONFIG.replace("rate_per_s = 10.0\nseconds = 1.0\n", load) + sections
    (folder / "two.toml").write_text(text)
    return load_scenario(str(folder / "two.toml"))


def test_each_model_keeps_its_own_accuracy_floor(tmp_path: Path) -> None:
    goals = {"cats": "accuracy>=85, min energy", "dogs": "accuracy>=65, min energy"}
    row = simulate(scenario(tmp_path, 300.0, goals, {}), "goal").summary
    assert row.models["cats"].accuracy_prior == pytest.approx(0.85, abs=0.01)
    assert row.models["dogs"].accuracy_prior == pytest.approx(0.65, abs=0.01)


@pytest.mark.slow
def test_floors_that_cannot_both_be_kept_yield_by_weight_and_nobody_starves(tmp_path: Path) -> None:
    goals = {"cats": "accuracy>=88", "dogs": "accuracy>=88"}
    crowded = scenario(tmp_path, 4_500.0, goals, {"cats": 3.0})
    row = simulate(crowded, "goal").summary
    cats, dogs = row.models["cats"], row.models["dogs"]
    assert cats.accuracy_prior > dogs.accuracy_prior + 0.05
    assert dogs.completed > 0.9 * cats.completed
    assert dogs.accuracy_prior >= 0.6
