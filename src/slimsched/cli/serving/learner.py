"""The learner that `slim router train` trains, and what is read from the command line for it.

Torch takes long to load, so learners are imported only where one is made.
"""

from typing import TYPE_CHECKING

from slimsched.core.config import ConfigError, Finite, convert
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.goal import Goal, parse_goal

if TYPE_CHECKING:
    from slimsched.serving.learning.learner import Learner
    from slimsched.serving.learning.rollout import RewardWeights


def learner_of(state: str, scenario: Scenario, reward: "RewardWeights", goal: Goal | None) -> "Learner":
    """Return the policy to train."""
    from slimsched.serving.learning.head_policy import HeadPolicy
    from slimsched.serving.learning.paper_policy import PaperPolicy

    if state == "paper":
        return PaperPolicy(scenario.cluster, reward)
    return HeadPolicy(goal=goal)


def goal_of(text: str, state: str) -> Goal | None:
    """Read the goal that training follows, if any."""
    if text and state != "head":
        raise ConfigError("--goal is for ppo with --state head; --state paper has --weights")
    return parse_goal(text) if text else None


def reward_of(text: str, centre: float) -> "RewardWeights":
    """Read α, β, γ, δ and perhaps b of the paper's reward."""
    from slimsched.serving.learning.rollout import RewardWeights

    try:
        given = convert([float(part) for part in text.split(",")], list[Finite], "--weights")
        accuracy, latency, energy, imbalance, *bonus = given
        (b,) = bonus or [RewardWeights().bonus]
    except ValueError:
        raise ConfigError(
            f"--weights '{text}' is not understood; write four or five numbers such as 1,1,0.02,0.1"
        ) from None
    return RewardWeights(
        accuracy=accuracy,
        latency_per_s=latency,
        energy_per_j=energy,
        imbalance=imbalance,
        bonus=b,
        centre=centre,
    )
