"""The table of all routers. A new built-in router needs a class and a line here; your own needs neither.

A router is named by a spec, and every command takes the same specs:

    lp                                       a router of the table
    lp:margin=1.2:every_s=0.5                with options; the constructor's annotations say their types
    goal[accuracy>=75, p99<=60ms]            with a goal in brackets, for routers that follow one
    goal[p99<=60ms]:shadow=true              with both
    warm:drift-plus-penalty:v=0.7            any router, kept to choices that busy servers have loaded
    my_router.py:MyRouter:speed=3            a class in a file of yours
    their-router                             an entry point `slimsched.routers` of an installed package

A router is made as `Class(cluster=…, rng=…, **options)`. It is also passed `seed` and `goal` if it has
parameters with these names; one that has a parameter `goal` follows goals.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from random import Random
from typing import Literal

import msgspec

from slimsched.core.config import ConfigError, Count, DataError, PositiveAmount, Share, SlimError, convert
from slimsched.core.plugins import PluginTable
from slimsched.core.policy_file import read_policy, read_story
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal, check_affordable, check_reachable, parse_goal
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers import classic
from slimsched.serving.routers.goal import GoalParameters, GoalRouter
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.learned import HEAD_V, HeadPpoRouter, PpoRouter

RouterMaker = Callable[[str, Cluster, int, Goal | None], Router]
"""Makes a router from its spec, the cluster, a seed, and the goal for routers that follow one."""

FALLBACK_V = 0.5
"""The guard falls back to drift-plus-penalty with this V: it held the most load in docs/results.md."""

SHIPPED_POLICIES = tuple(
    f"{kind}-{seed}"
    for kind in ("head", "paper-balanced", "paper-efficient", "paper-latency")
    for seed in range(3)
)
"""The policies of `ppo` that come with the package, each with its seed of training."""

WARM = "warm:"
"""Before a router's spec: it keeps to choices that busy servers have loaded."""

_BRACKETS = re.compile(r"(?P<before>[^\[\]]*)\[(?P<goal>[^\[\]]*)\](?P<after>[^\[\]]*)")


def make_ppo(
    cluster: Cluster,
    rng: Random,
    policy: str = "head-0",
    v: PositiveAmount = HEAD_V,
    goal: Goal | None = None,
    shadow: bool = False,
) -> Router:
    """Make a PPO router with a shipped policy, or with a file that `slim router train` wrote.

    A policy that sees the head runs behind the guard. `v` says how many seconds of waiting a unit of accuracy
    is worth to it; where a goal states limits, v follows them.
    """
    shipped = files("slimsched.serving.routers") / "shipped" / f"ppo-{policy}.safetensors"
    file = str(shipped) if policy in SHIPPED_POLICIES else policy
    weights, story = read_policy(file)
    known = convert(
        {name: story[name] for name in ("state", "epsilon") if name in story}, _PpoStory, f"policy {file}"
    )
    if known.state == "head":
        learned = HeadPpoRouter(cluster, rng, weights, v, goal=goal)
        return GuardedRouter(
            learned, classic.DriftPlusPenaltyRouter(cluster, rng, v=FALLBACK_V), shadow=shadow
        )
    return PpoRouter(cluster, rng, weights, known.epsilon)


class _PpoStory(msgspec.Struct, frozen=True, kw_only=True):
    """What the router needs of the file that says how its policy was trained."""

    state: Literal["paper", "head"]
    epsilon: Share


def make_goal(
    cluster: Cluster,
    rng: Random,
    goal: Goal | None = None,
    shadow: bool = False,
    sure: bool = False,
    gains: str | None = None,
    **changed: float,
) -> GuardedRouter:
    """Make the goal router behind its guard.

    With `sure`, answers of models that say how sure they are can be followed by those of wider plans.
    `gains` is a file that `slim router train goal` wrote. Each field of `GoalParameters` is an option too.
    """
    learned = trained_parameters(gains) if gains else GoalParameters()
    router = GoalRouter(cluster, goal, msgspec.structs.replace(learned, **changed), sure=sure)
    fallback = classic.DriftPlusPenaltyRouter(cluster, rng, v=FALLBACK_V)
    return GuardedRouter(router, fallback, shadow=shadow)


_STATED = list(inspect.signature(make_goal).parameters.values())[:-1]
_FIELDS = [
    inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type)
    for one in msgspec.structs.fields(GoalParameters)
]
make_goal.__signature__ = inspect.Signature([*_STATED, *_FIELDS])  # type: ignore[attr-defined]


def make_sharded(
    cluster: Cluster, rng: Random, seed: int, size: Count = 32, router: str = "goal", goal: Goal | None = None
) -> classic.ShardedRouter:
    """Make shards of `size` servers, each with a router of its own."""

    def shard_of(part: Cluster) -> Router:
        own = goal
        if own is not None and own.power_w:  # each shard has its part of the power
            own = msgspec.structs.replace(own, power_w=own.power_w * len(part) / len(cluster))
        return make_router(router, part, seed, own)

    return classic.ShardedRouter(cluster, rng, shard_of, size=size)


ROUTERS: dict[str, tuple[Callable[..., Router], str]] = {
    "random": (classic.RandomRouter, "server, choice and group at random (the paper's baseline)"),
    "round-robin": (classic.RoundRobinRouter, "every server in turn, whatever its speed"),
    "jsq": (classic.JsqRouter, "the server with the fewest outstanding requests"),
    "power-of-two": (classic.PowerOfTwoRouter, "the less loaded of two random servers (Ray Serve's default)"),
    "sed": (classic.SedRouter, "the server that finishes first, at the widest choice in time"),
    "speed-jsq": (classic.SpeedJsqRouter, "fewest outstanding requests for the server's speed"),
    "drift-plus-penalty": (classic.DriftPlusPenaltyRouter, "trades queues against accuracy; v sets the rate"),
    "slackfit": (classic.SlackFitRouter, "the slowest choice and group that still fit the deadline"),
    "lp": (classic.LpRouter, "follows the fluid optimum for the measured load"),
    "ppo": (make_ppo, "a trained policy that sees the head of the queue, guarded"),
    "ppo-balanced": (
        lambda cluster, rng: make_ppo(cluster, rng, "paper-balanced-0"),
        "the paper's PPO with its balanced reward",
    ),
    "ppo-efficient": (
        lambda cluster, rng: make_ppo(cluster, rng, "paper-efficient-0"),
        "the paper's PPO with its efficient reward",
    ),
    "goal": (make_goal, "keeps the goal you state: accuracy, latency, energy, power"),
    "sharded": (make_sharded, "splits many servers into shards, each with a router"),
}
"""Name → what makes the router, and what it does, in a line."""

_TABLE: PluginTable[Router] = PluginTable(
    kind="router",
    group="slimsched.routers",
    builtin={name: maker for name, (maker, _) in ROUTERS.items()},
    context=("cluster", "rng", "seed", "goal"),
)


def router_names() -> tuple[str, ...]:
    """List the built-in routers, then the routers of installed packages."""
    return _TABLE.names()


def make_router(spec: str, cluster: Cluster, seed: int, goal: Goal | None = None) -> Router:
    """Make a router. `goal` is for a router that follows goals and whose spec states none."""
    if spec.startswith(WARM):
        return classic.WarmRouter(cluster, make_router(spec.removeprefix(WARM), cluster, seed, goal))
    bare, own_goal = split_goal(spec)
    if own_goal is not None and not _TABLE.takes(bare, "goal"):
        raise ConfigError(f"router '{bare}' follows no goal; leave the brackets out, or use goal[…]")
    if own_goal is not None and goal is not None:
        own_goal = msgspec.structs.replace(own_goal, by_model=goal.by_model)
    router = _TABLE.make(bare, cluster=cluster, rng=Random(seed), seed=seed, goal=own_goal or goal)
    if not callable(getattr(router, "route", None)):
        raise ConfigError(f"'{bare}' is not a router: give it a method route(observation) -> Route | None")
    return router


def maker_of(router: str | Callable[..., Router]) -> tuple[str, RouterMaker]:
    """Return the name and the maker of a router, given a spec, a class or a function."""
    if isinstance(router, str):
        return router, make_router
    name = getattr(router, "__name__", "router")
    own: PluginTable[Router] = PluginTable(
        kind="router", group="", builtin={name: router}, context=("cluster", "rng", "seed", "goal")
    )

    def make(spec: str, cluster: Cluster, seed: int, goal: Goal | None = None) -> Router:
        return own.make(name, cluster=cluster, rng=Random(seed), seed=seed, goal=goal)

    return name, make


def follows_goal(spec: str) -> bool:
    """Whether the router that a spec names follows a goal."""
    return _TABLE.takes(split_goal(spec.removeprefix(WARM))[0], "goal")


def split_goal(spec: str) -> tuple[str, Goal | None]:
    """Split a spec into the spec without its brackets, and the goal that stands in them."""
    if "[" not in spec and "]" not in spec:
        return spec, None
    match = _BRACKETS.fullmatch(spec)
    if match is None:
        raise ConfigError(f"router '{spec}': brackets do not match; write goal[accuracy>=75, p99<=60ms]")
    return match["before"] + match["after"], parse_goal(match["goal"])


def check_goal(goal: str | None, routers: Sequence[str]) -> None:
    """Refuse a goal that none of the routers would follow."""
    if goal is not None and not any(follows_goal(router) for router in routers):
        named = f"router '{routers[0]}' follows" if len(routers) == 1 else "these routers follow"
        raise ConfigError(f"{named} no goal ({goal}); use the router goal")


def check_reach(routers: Sequence[str], cluster: Cluster) -> None:
    """Refuse a router whose own goal, the one in brackets, a cluster's models cannot reach."""
    for router in routers:
        if (goal := split_goal(router)[1]) is not None:
            check_reachable(goal, cluster.models)
            check_affordable(goal, cluster)


def split_specs(text: str) -> list[str]:
    """Split a list of routers at its commas; commas inside brackets belong to a goal."""
    specs = [spec.strip() for spec in re.split(r",(?![^\[\]]*\])", text)]
    named = [spec for spec in specs if spec]
    if not named:
        raise ConfigError("no router is named; name some, such as sed,lp")
    return named


def trained_parameters(file: str) -> GoalParameters:
    """Read the parameters that `slim router train goal` wrote to a file."""
    try:
        return convert(read_story(file)["parameters"], GoalParameters, "parameters")
    except (SlimError, KeyError) as error:
        raise DataError(
            f"the gains in {file} cannot be used ({error}); run slim router train goal --out {file}"
        ) from None
