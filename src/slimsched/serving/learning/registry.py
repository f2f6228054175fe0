"""The table of all routers: the classical ones, the paper's trained policies, and `goal`."""

import json
from pathlib import Path
from random import Random

import msgspec

from slimsched.kernel.errors import ConfigError, DataError, UnknownNameError
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.learning.policy_file import read_policy, shipped_policies
from slimsched.serving.routing import registry as classical
from slimsched.serving.routing.goal import Goal, goal_of
from slimsched.serving.routing.guard import GuardedRouter
from slimsched.serving.routing.router import Router
from slimsched.serving.routing.routers.goal import GoalParameters, GoalRouter
from slimsched.serving.routing.routers.ppo import PpoRouter
from slimsched.serving.routing.routers.sharded import ShardedRouter

GOAL_OPTIONS = ("min_accuracy", "p99_ms", "minimise", "maximise", "shadow", "gains")
FALLBACK = "drift-plus-penalty:v=0.5"
"""The classical router the guard turns to: of all it held the most load in docs/results.md."""


def make_router(spec: str, cluster: Cluster, seed: int) -> Router:
    """Make any router from its name and options.

    Examples: 'lp:margin=1.2', 'ppo-efficient', 'ppo:my-policy.safetensors',
    'goal:min_accuracy=75:p99_ms=60:minimise=energy', 'goal:shadow=1', 'sharded:32:goal:p99_ms=60'.
    """
    name, *options = spec.split(":")
    if name == "goal":
        return make_goal(options, cluster, seed)
    if name == "sharded":
        return make_sharded(options, cluster, seed)
    if name == "ppo" and options:
        return make_ppo(":".join(options), cluster, seed)
    if name in shipped_policies():
        return make_ppo(name, cluster, seed)
    if name not in classical.ROUTERS:
        raise UnknownNameError("router", name, router_names())
    return classical.make_router(spec, cluster, seed)


def router_names() -> list[str]:
    """Every name `make_router` knows."""
    return [*classical.ROUTERS, *shipped_policies(), "goal", "sharded"]


SERVING = "goal:in_time=0.7"
"""What serves best where requests come with deadlines: as much accuracy as can be had in time."""


def goal_spec(router: str, **goal: float | str | None) -> str:
    """Append stated goals to a router's spec, as in goal:min_accuracy=75:minimise=energy."""
    stated = [f"{name}={value}" for name, value in goal.items() if value is not None]
    if stated and router.partition(":")[0] != "goal":
        raise ConfigError(f"router '{router}' knows no goals ({', '.join(stated)}); use --router goal")
    return ":".join([router, *stated])


def make_ppo(policy: str, cluster: Cluster, seed: int) -> PpoRouter:
    """The paper's router with a shipped policy, or one from a file."""
    weights, story = read_policy(policy)
    return PpoRouter(cluster, Random(seed), weights, float(story["epsilon"]))


def make_goal(options: list[str], cluster: Cluster, seed: int) -> GuardedRouter:
    """The goal router behind its guard; its gains can be read from a file, or overridden one by one."""
    asked: dict[str, str] = {}
    known = (*GOAL_OPTIONS, *GoalParameters.__struct_fields__)
    for option in options:
        key, _, value = option.partition("=")
        if key not in known:
            raise ConfigError(f"router 'goal' has no option '{key}'; it takes {', '.join(known)}")
        asked[key] = value
    words = {key: asked[key] for key in ("minimise", "maximise", "gains") if key in asked}
    numbers = {key: _number(key, value) for key, value in asked.items() if key not in words}
    changed = {key: value for key, value in numbers.items() if key in GoalParameters.__struct_fields__}
    gains = trained_parameters(Path(words.pop("gains"))) if "gains" in words else GoalParameters()
    learned = msgspec.structs.replace(gains, **changed)
    goal: Goal = goal_of(
        min_accuracy=numbers.get("min_accuracy", 0.0), p99_ms=numbers.get("p99_ms", 0.0), **words
    )
    return GuardedRouter(
        GoalRouter(cluster, goal, learned),
        classical.make_router(FALLBACK, cluster, seed),
        shadow=bool(numbers.get("shadow", 0.0)),
    )


def make_sharded(options: list[str], cluster: Cluster, seed: int) -> ShardedRouter:
    """Shards of so many servers (32), each with a router of its own (goal)."""
    size, *inner = options or ["32"]
    if not size.isdecimal() or int(size) < 1:
        raise ConfigError(
            f"router 'sharded' takes servers a shard, then a router, as sharded:32:goal; not '{size}'"
        )
    spec = ":".join(inner) or "goal"
    return ShardedRouter(cluster, Random(seed), lambda part: make_router(spec, part, seed), size=int(size))


def trained_parameters(path: Path) -> GoalParameters:
    """What `slim router train goal` left in a file."""
    try:
        return msgspec.convert(json.loads(path.read_text())["parameters"], GoalParameters)
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path.name} cannot be read ({error}); write it with: slim router train goal --out {path.name}"
        ) from None


def _number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"router 'goal', option '{key}': '{value}' is not a number") from None
