"""The goal router keeps every kind of limit in simulated runs; limits yield in the order that is stated."""

import pytest
from msgspec.structs import replace

from slimsched.core.config import ConfigError
from slimsched.serving.gateway.goal import check_affordable, format_goal, parse_goal
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Summary


def run(goal: str, *, rate_per_s: float = 5000.0, seconds: float = 10.0) -> Summary:
    scenario = load_scenario("paper", goal=goal)
    scenario = scenario.with_load(seconds=seconds, warmup_s=0.4 * seconds, rate_per_s=rate_per_s)
    return simulate(scenario, "goal").summary


def broken(row: Summary) -> list[str]:
    return [one.limit for one in row.verdicts if one.word == "broken"]


@pytest.mark.parametrize(
    ("goal", "rate_per_s"),
    [
        pytest.param(*("mean<=45ms", 9200.0), marks=pytest.mark.slow),
        pytest.param(*("p95<=60ms", 9200.0), marks=pytest.mark.slow),
        pytest.param(*("p95<=60ms, mean<=50ms", 9200.0), marks=pytest.mark.slow),
        pytest.param(*("energy<=45mJ", 5000.0), marks=pytest.mark.slow),
        pytest.param(*("power<=350W", 5000.0), marks=pytest.mark.slow),
        ("accuracy>=75, energy<=60mJ, min energy", 5000.0),
    ],
)
def test_a_limit_is_kept(goal: str, rate_per_s: float) -> None:
    row = run(goal, rate_per_s=rate_per_s)
    assert not broken(row), row.verdicts
    assert row.completed > 0.9 * row.arrived


@pytest.mark.slow
def test_a_limit_on_energy_is_not_kept_by_wasting_accuracy() -> None:
    loose, tight = run("energy<=60mJ"), run("energy<=40mJ")
    assert loose.energy_j_per_request > 0.85 * 0.060, "what may be spent is spent"
    assert loose.accuracy_prior > tight.accuracy_prior + 0.005


@pytest.mark.slow
def test_accuracy_yields_to_energy_and_energy_to_latency() -> None:
    goal = "accuracy>=80, energy<=30mJ, p99<=80ms"
    row = run(goal)
    assert broken(row) == ["accuracy>=80"]
    overloaded = run("accuracy>=80, p99<=80ms", rate_per_s=12_000.0)
    assert broken(overloaded) == ["accuracy>=80"]


@pytest.mark.parametrize(
    "text",
    [
        "p95<=50ms, max accuracy",
        "accuracy>=75, energy<=20mJ, power<=30W, p99<=60ms, p95<=50ms, mean<=20ms, min energy",
    ],
)
def test_a_goal_reads_as_it_is_written(text: str) -> None:
    assert format_goal(parse_goal(text)) == text
    assert format_goal(parse_goal("power<=0.5kW, energy<=2J, p95<=1s")) == (
        "energy<=2000mJ, power<=500W, p95<=1000ms, max accuracy"
    )


@pytest.mark.parametrize(
    ("goal", "says"),
    [
        ("energy<=0mJ", "millijoules above 0"),
        ("power<=0W", "watts above 0"),
        ("p95<=60", "is not understood"),
        ("accuracy>=75, energy<=20mJ, min latency", "min latency does not go with"),
    ],
)
def test_what_makes_no_sense_is_refused(goal: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_goal(goal)


def test_limits_that_no_plan_can_keep_are_refused_with_what_is_possible() -> None:
    cluster = load_scenario("paper").cluster
    with pytest.raises(ConfigError, match=r"the cheapest plan of slimresnet takes .* mJ"):
        check_affordable(parse_goal("energy<=0.01mJ"), cluster)
    with pytest.raises(ConfigError, match=r"the servers draw .* W when idle"):
        check_affordable(parse_goal("power<=10W"), cluster)
    with pytest.raises(ConfigError, match="when idle"):
        load_scenario("paper", goal="power<=10W")


def test_limits_of_several_models_stand_in_the_order_in_which_they_yield() -> None:
    own = {"cats": parse_goal("accuracy>=70, mean<=20ms")}
    goal = replace(parse_goal("accuracy>=75, power<=400W, p99<=60ms"), by_model=own)
    assert goal.clauses(["cats"]) == ["accuracy>=70", "power<=400W", "mean<=20ms"]
    assert goal.clauses(["cats", "dogs"]) == [
        "cats: accuracy>=70",
        "dogs: accuracy>=75",
        "power<=400W",
        "cats: mean<=20ms",
        "dogs: p99<=60ms",
    ]
