"""Goals in words."""

import pytest

from slimsched.kernel.errors import ConfigError
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.goal_text import format_goal, parse_goal

GOALS = {
    "accuracy>=75, p99<=60ms, min energy": Goal(objective="energy", min_accuracy=0.75, p99_s=0.06),
    "Minimise latency, accuracy ≥ 0.8": Goal(objective="latency", min_accuracy=0.8),
    "p99 <= 0.5 s": Goal(p99_s=0.5),
    "max accuracy": Goal(),
    "accuracy >= 78.5 %": Goal(min_accuracy=0.785),
}


@pytest.mark.parametrize("text", GOALS)
def test_words_become_a_goal_and_back(text: str) -> None:
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
def test_what_is_not_understood_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_goal(text)
