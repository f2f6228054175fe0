"""What learned routers share: v, which may follow a goal, what a guard asks of them, and small networks."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import ConfigError
from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Request
from slimsched.serving.routing.goal import Goal
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.worth import Worth

Values = NDArray[np.float64]
Layer = tuple[Values, Values]

IN_USE = 4.0
"""Logits are multiplied by this outside training, so that chance only settles what is nearly equal."""


class LearnedRouter:
    """Holds v, the seconds of waiting that a unit of accuracy is worth, and lets it follow a goal."""

    def __init__(self, cluster: Cluster, v: float, goal: Goal | None) -> None:
        self.worth = Worth(cluster, v, goal)
        self._cluster = cluster
        self._narrowest = 0.0  # share of the last hundred decisions at the narrowest choice
        self._now_s, self._plans = -1.0, False

    def begin(self, seen: Observation) -> None:
        """Move v, once per scheduling step."""
        if seen.now_s != self._now_s:
            self._now_s, self._plans = seen.now_s, seen.plans
            if self.worth.is_stated:
                self.worth.update(seen.now_s)

    def sent(self, seen: Observation, choice: int, *, is_narrowest: bool) -> None:
        """Note the choice at which the head is sent."""
        self._narrowest += 0.01 * (float(is_narrowest) - self._narrowest)
        if self.worth.is_stated and not seen.plans:
            self.worth.sent(seen, choice, min(seen.count, self._cluster.batch_limit))

    @property
    def v(self) -> float:
        """How many seconds of waiting a unit of accuracy is worth now."""
        return self.worth.v

    @property
    def goal(self) -> Goal:
        """The goal that v follows."""
        return self.worth.goal

    @property
    def saturated(self) -> bool:
        """Whether it could hardly choose narrower."""
        return self._narrowest > 0.8

    def knows(self, model: int, path: Path) -> bool:
        """Whether some plan of a model begins with this path."""
        return path in self._cluster.models[model].tree.row

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Note answers, where whole networks are planned."""
        if self._plans and self.worth.is_stated:
            self.worth.answered(requests, now_s)


def check_weights(
    router: str, names: Sequence[str], weights: Mapping[str, Values], *, train: str = "slim router train"
) -> None:
    """Refuse weights of another kind of router; `train` is the command that makes the right ones."""
    if missing := [name for name in names if name not in weights]:
        raise ConfigError(
            f"this is no policy of the router {router}: it has no '{missing[0]}'; train one with: {train}"
        )


def layers_of(weights: Mapping[str, Values], net: str) -> list[Layer]:
    """Return the matrices of a network with two hidden layers, as torch's Sequential names them."""
    return [
        (weights[f"{net}.{layer}.weight"].T.copy(), weights[f"{net}.{layer}.bias"]) for layer in (0, 2, 4)
    ]


def names_of(*nets: str) -> tuple[str, ...]:
    """Return the names of the weights of such networks."""
    return tuple(
        f"{net}.{layer}.{part}" for net in nets for layer in (0, 2, 4) for part in ("weight", "bias")
    )


def outputs(layers: list[Layer], shared: Values, rows: Values) -> Values:
    """Return the outputs of a network for each row; its first inputs are shared by all rows."""
    (first, bias), (second, more), (last, offset) = layers
    x = np.tanh(rows @ first[len(shared) :] + (shared @ first[: len(shared)] + bias))
    x = np.tanh(x @ second + more)
    logits: Values = x @ last + offset
    return logits


def softmax(logits: Values) -> Values:
    """Return chances from logits, along the last axis."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances: Values = raised / raised.sum(axis=-1, keepdims=True)
    return chances


def draw(chances: Values, random: float) -> int:
    """Return the place in a list of chances that a random number below 1 falls on."""
    return min(int(chances.cumsum().searchsorted(random, side="right")), len(chances) - 1)
