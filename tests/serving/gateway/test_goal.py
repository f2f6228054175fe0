"""Goals as text."""

import pytest

from slimsched.core.config import ConfigError
from slimsched.serving.gateway.goal import Goal, format_goal, parse_goal

GOALS = {
    "accuracy>=75, p99<=60ms, min energy": Goal(objective="energy", min_accuracy=0.75, p99_s=0.06),
    "Minimise latency, accuracy ≥ 0.8": Goal(objective="latency", min_accuracy=0.8),
    "p99 <= 0.5 s": Goal(p99_s=0.5),
    "max accuracy": Goal(),
    "accuracy >= 78.5 %": Goal(min_accuracy=0.785),
}


@pytest.mark.parametrize("text", GOALS)
def test_text_becomes_a_goal_and_back(text: str) -> None:
    goal = parse_goal(text)
    assert goal == GOALS[text]
    assert parse_goal(format_goal(goal)) == goal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast please",
        "accuracy<=75",
        "p99<=60",
        "p99<=1.2.3ms",
        "accuracy>=75, accuracy>=80",
        "min energy",
        "accuracy>=75, min energy, max accuracy",
        "accuracy>=175",
        "max energy",
    ],
)
def test_text_that_is_not_a_goal_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_goal(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("min energy", "needs an accuracy floor, such as accuracy>=75"),
        ("min cost, accuracy>=70", "min energy, min latency, max accuracy"),
        ("accuracy>=high", "write accuracy>=75"),
        ("p99<=-5ms", "write accuracy>=75, p99<=60ms"),
        ("accuracy>=100", "give a percentage below 100"),
        ("p99<=5ms, p99<=6ms", "repeats an earlier clause"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        parse_goal(text)


def test_percent_and_share_mean_the_same() -> None:
    assert parse_goal("accuracy>=75") == parse_goal("accuracy>=0.75")
