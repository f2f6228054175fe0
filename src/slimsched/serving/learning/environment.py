"""`slimsched/Routing-v0`: routing on the simulated cluster as a Gymnasium environment.

One step is one routing decision for the head of the queue: server × choice × group. The observation is the
paper's state (1). The reward of a step is the sum of the rewards (7) of all blocks that came back since the
previous step.
"""

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.learning.rollout import RewardWeights, Rollout
from slimsched.serving.routers.classic import group_sizes
from slimsched.serving.routers.learned import most_choices, state_of
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario

# -- A router whose decisions come from outside: the simulation runs in a thread and stops at every decision.


class _EpisodeAbandoned(BaseException):
    """Ends the simulation's thread when no more answers will come."""


class ExternalRouter:
    """Lets the caller decide: `start()` returns the first observation, `answer(route)` the next, and so on.

    Exactly one of the two threads runs at any time, so nothing needs a lock.
    """

    def __init__(self) -> None:
        self._questions: SimpleQueue[Observation | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[Route | _EpisodeAbandoned | None] = SimpleQueue()
        self._thread: Thread | None = None

    def route(self, seen: Observation) -> Route | None:
        """Ask for a decision and wait for it. The gateway calls this in the simulation's thread."""
        self._questions.put(seen)
        answer = self._answers.get()
        if isinstance(answer, _EpisodeAbandoned):
            raise answer
        return answer

    def start(self, simulation: Callable[[], object]) -> Observation | None:
        """Run a simulation up to its first decision; None if it ends without one."""
        self._thread = Thread(target=self._run, args=(simulation,), daemon=True, name="simulation")
        self._thread.start()
        return self._wait()

    def answer(self, route: Route | None) -> Observation | None:
        """Give the decision and return the observation of the next one; None at the end."""
        self._answers.put(route)
        return self._wait()

    def abandon(self) -> None:
        """End the simulation at once."""
        if self._thread is not None and self._thread.is_alive():
            self._answers.put(_EpisodeAbandoned())
            self._thread.join()
        self._thread = None

    def _wait(self) -> Observation | None:
        question = self._questions.get()
        if isinstance(question, BaseException):
            raise question
        return question

    def _run(self, simulation: Callable[[], object]) -> None:
        try:
            simulation()
            self._questions.put(None)
        except _EpisodeAbandoned:
            return
        except BaseException as failure:
            self._questions.put(failure)


ROUTING = "slimsched/Routing-v0"
MOST_LOG, MOST_W = 30.0, 1e5
"""The largest logarithm of a count, and the largest power of a server, that are told apart."""
State = NDArray[np.float32]


class RoutingEnv(gymnasium.Env[State, NDArray[np.int64]]):
    """The environment; its gateway and schedulers also run live, only the decisions come from outside.

    A scenario may be given by the name of a shipped one, or by its path. A copy begins without an episode.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, scenario: Scenario | str = "paper", *, weights: RewardWeights | None = None) -> None:
        scenario = load_scenario(scenario) if isinstance(scenario, str) else scenario
        self._scenario, cluster = scenario, scenario.cluster
        self._weights = weights or RewardWeights(centre=cluster.models[0].quality.expected(()))
        self._groups = group_sizes(cluster.batch_limit)
        self._router = ExternalRouter()
        self._rollout: Rollout | None = None
        self._seen: Observation | None = None
        self._choices = most_choices(cluster)
        most = [MOST_LOG, MOST_LOG] + len(cluster) * [MOST_LOG, MOST_W, 1.0]  # as `state_of` orders them
        self._most = np.array(most, np.float32)
        self.observation_space = spaces.Box(np.float32(0.0), self._most)
        self.action_space = spaces.MultiDiscrete([len(cluster), self._choices, len(self._groups)])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[State, dict[str, Any]]:
        """Start an episode; the same seed gives the same arrivals."""
        super().reset(seed=seed)
        self._router.abandon()
        self._router = ExternalRouter()
        rollout = Rollout(self._scenario, self._router, seed=int(self.np_random.integers(2**31)))
        self._rollout = rollout
        self._seen = self._router.start(lambda: rollout.simulated.run(rollout.ends_s))
        return self._state(), {"action_mask": self.action_mask()}

    def step(self, action: NDArray[np.int64]) -> tuple[State, float, bool, bool, dict[str, Any]]:
        """Send the head where the action says; replace a server that is down or a choice that is missing."""
        assert self._rollout is not None, "call reset() first"
        assert self._seen is not None, "the episode is over: call reset()"
        server = int(action[0])
        if not self._seen.alive[server]:
            server = self._seen.alive_ids[0]
        choice = int(action[1])
        if choice not in (known := self._known_choices()):
            choice = int(known[-1])
        route = Route(server, choice, self._groups[int(action[2])], "action")
        recorder = self._rollout.recorder
        recorder.outcomes.clear()
        self._seen = self._router.answer(route)
        reward = sum(outcome.reward(self._weights) for outcome in recorder.outcomes)
        over = self._seen is None
        return self._state(), float(reward), False, over, {"action_mask": self.action_mask()}

    def action_mask(self) -> NDArray[np.int8]:
        """Return 1 for every valid action: servers, choices, groups (the order of MultiDiscrete)."""
        alive = np.ones(len(self._scenario.cluster)) if self._seen is None else self._seen.alive
        choices = np.isin(np.arange(self._choices), self._known_choices())
        return np.concatenate([alive, choices, np.ones(len(self._groups))]).astype(np.int8)

    def _known_choices(self) -> NDArray[np.int64]:
        """The choices that may follow the head's path."""
        model, path = (0, ()) if self._seen is None else (self._seen.model, self._seen.path)
        tree = self._scenario.cluster.models[model].tree
        return tree.choices[tree.row[path]]

    def close(self) -> None:
        """End the simulation."""
        self._router.abandon()

    def _state(self) -> State:
        seen = self._seen
        if seen is None:
            assert self._rollout is not None
            seen = self._rollout.gateway.seen
        return state_of(seen).astype(np.float32).clip(0.0, self._most)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle what it is, without the episode: that runs in a thread."""
        return partial(RoutingEnv, weights=self._weights), (self._scenario,)


if ROUTING not in gymnasium.registry:
    gymnasium.register(id=ROUTING, entry_point="slimsched.serving.learning.environment:RoutingEnv")
