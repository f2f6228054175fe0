"""What a PPO router is trained on: the loads of one scenario, mixed with drawn clusters."""

import numpy as np
from msgspec import Struct

from slimsched.core.config import Count, PositiveSeconds, Share
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.learning.disturbance import disturb
from slimsched.serving.learning.ppo import Draw
from slimsched.serving.learning.random_scenario import random_scenario

LEAST_LOAD = 4000 / 9200
"""Training covers loads from this share of the scenario's rate: `paper` queues nothing at 4,000/s."""

DISTURBED = 0.4
"""Share of episodes in which the world is not what the model says, for the policy that sees the head."""


class Curriculum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Episodes run the scenario at a load drawn evenly from `rates_per_s`, or a drawn cluster.

    `drawn` is the share of drawn clusters. They differ in servers, links, arrivals, faults and the age of
    telemetry (`random_scenario.py`). In a share `disturbed` of all episodes the devices, the links or the
    load are not what the router's model says (`disturbance.py`).
    """

    scenario: str
    rates_per_s: tuple[float, float]
    episode_s: PositiveSeconds = 12.0
    drawn: Share = 0.0
    disturbed: Share = 0.0
    drawn_requests: Count = 15_000

    def draw(self, like: Scenario) -> Draw:
        """Return the function that draws the scenario of the next episode."""

        def drawn(rng: np.random.Generator) -> Scenario:
            if rng.uniform() < self.drawn:
                episode = random_scenario(like, rng, requests=self.drawn_requests)
            else:
                rate_per_s = float(rng.uniform(*self.rates_per_s))
                episode = like.with_load(seconds=self.episode_s, rate_per_s=rate_per_s)
            return disturb(episode, rng) if rng.uniform() < self.disturbed else episode

        return drawn


def curriculum_of(scenario: Scenario, *, episode_s: float, drawn: float, disturbed: float) -> Curriculum:
    """Return the curriculum for one scenario: loads up to its own rate."""
    rate_per_s = scenario.load.rate_per_s
    return Curriculum(
        scenario=scenario.name,
        rates_per_s=(LEAST_LOAD * rate_per_s, rate_per_s),
        episode_s=episode_s,
        drawn=drawn,
        disturbed=disturbed,
    )
