"""What the PPO trainer needs of a policy: a network, routers that use it, and rewards."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.rollout import Outcome
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route

Values = NDArray[np.float64]
Forward = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""Maps row numbers to the logits of every head and to the values."""


class LearningRouter(Protocol):
    """A router that keeps its decisions and can be given other weights."""

    epsilon: float
    decisions: Any

    def use(self, weights: Mapping[str, Values]) -> None:
        """Use these weights from now on."""
        ...

    def route(self, seen: Observation) -> Route | None:
        """Decide for the head of the queue."""
        ...


class Learner(Protocol):
    """A policy that is being trained."""

    @property
    def network(self) -> nn.Module:
        """The network with all weights that are trained."""
        ...

    def router(self, cluster: Cluster, rng: Random, epsilon: float) -> LearningRouter:
        """Make a router for one episode, which collects decisions."""
        ...

    def rewards(self, router: Any, decisions: Sequence[Any], outcomes: Sequence[Outcome]) -> Values:
        """Return the reward of each block that this router sent, by what it decided and what came of it."""
        ...

    def look(self, decisions: Sequence[Any]) -> None:
        """Look at decisions made before the first update, to learn what inputs are usual."""
        ...

    def batch(self, decisions: Sequence[Any]) -> tuple[Tensor, Forward]:
        """Return the actions of these decisions, and the function that computes their logits and values."""
        ...

    def weights(self) -> dict[str, Values]:
        """Return the weights that a router needs."""
        ...

    def use(self, weights: dict[str, Values]) -> None:
        """Go on from these weights."""
        ...


def weights_of(network: nn.Module) -> dict[str, Values]:
    """Return the weights of a network as arrays, which routers compute with."""
    return {name: value.detach().double().numpy().copy() for name, value in network.state_dict().items()}


def load_weights(network: nn.Module, weights: Mapping[str, Values]) -> None:
    """Let a network go on from these weights."""
    network.load_state_dict({name: torch.tensor(weights[name]).float() for name in network.state_dict()})
