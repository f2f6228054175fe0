"""The table of routers: a new one is one file and one line here."""

import inspect
from collections.abc import Callable
from random import Random

from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.router import Router
from slimsched.serving.routing.routers.drift_plus_penalty import DriftPlusPenaltyRouter
from slimsched.serving.routing.routers.jsq import JsqRouter
from slimsched.serving.routing.routers.lp import LpRouter
from slimsched.serving.routing.routers.power_of_two import PowerOfTwoRouter
from slimsched.serving.routing.routers.random import RandomRouter
from slimsched.serving.routing.routers.round_robin import RoundRobinRouter
from slimsched.serving.routing.routers.sed import SedRouter
from slimsched.serving.routing.routers.slackfit import SlackFitRouter
from slimsched.serving.routing.routers.speed_jsq import SpeedJsqRouter

ROUTERS: dict[str, Callable[..., Router]] = {
    "random": RandomRouter,
    "round-robin": RoundRobinRouter,
    "jsq": JsqRouter,
    "power-of-two": PowerOfTwoRouter,
    "sed": SedRouter,
    "speed-jsq": SpeedJsqRouter,
    "drift-plus-penalty": DriftPlusPenaltyRouter,
    "slackfit": SlackFitRouter,
    "lp": LpRouter,
}


RouterMaker = Callable[[str, Cluster, int], Router]
"""Makes a router from its spec, the cluster and a seed; `make_router` knows the classical ones."""


def make_router(spec: str, cluster: Cluster, seed: int) -> Router:
    """Make a router from its name and options, as in 'lp' or 'lp:margin=1.2:every_s=0.5'."""
    name, *options = spec.split(":")
    if name not in ROUTERS:
        raise UnknownNameError("router", name, list(ROUTERS))
    make = ROUTERS[name]
    known = [p for p in inspect.signature(make).parameters if p not in ("cluster", "rng")]
    values: dict[str, float] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ConfigError(f"router '{name}' has no option '{key}'; {takes}")
        try:
            values[key] = float(value)
        except ValueError:
            raise ConfigError(f"router '{name}', option '{key}': '{value}' is not a number") from None
    return make(cluster, Random(seed), **values)
