"""The contract every router keeps, run over the whole table and over a router of a user's own."""

from pathlib import Path

import numpy as np
import pytest

from cluster import MODEL, choice, path, small_cluster, toy_model
from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.models.spec import START
from slimsched.models.width import WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.routers import registry
from slimsched.serving.routers.registry import ROUTERS, follows_goal, make_router, split_specs
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

CLUSTER = small_cluster((10.0, 10.0, 3.0, 1.0))
PAPER = load_scenario("paper", accuracy="paper")
SHIPPED = Path(registry.__file__).parent / "shipped"
OWN = Path(__file__).parents[3] / "examples" / "04_your_own_router.py"
SPECS = [
    *ROUTERS,
    f"ppo:{SHIPPED / 'ppo-paper-balanced-1.safetensors'}",
    "goal[accuracy>=72, p99<=60ms, min energy]",
    "sharded[p99<=60ms]:2",
    f"{OWN}:CalmRouter",
]
"""Every router of the table by its plain name, `ppo` with a file, goals in brackets, one of a user's own."""


def cluster_for(spec: str) -> Cluster:
    """A policy with the paper's state (1) is bound to the number of servers it was trained with."""
    return PAPER.cluster if is_bound(spec) else CLUSTER


def is_bound(spec: str) -> bool:
    """Whether a router only fits the cluster that it was trained on."""
    return spec.startswith(("ppo-", "ppo:"))


def observations(count: int, servers: int = len(CLUSTER)) -> list[Observation]:
    """Heads and server states of all kinds; servers that are down or leave may still hold inputs."""
    rng, states = np.random.default_rng(1), []
    for number in range(count):
        seen = Observation(servers)
        seen.now_s = number * 0.01
        seen.segment = int(rng.integers(4))
        seen.path = path(*rng.choice(WIDTHS, size=seen.segment).tolist())
        seen.previous = seen.path[-1] if seen.path else START
        seen.choices = MODEL.tree.after[seen.path]
        for server in rng.permutation(servers)[: int(rng.integers(servers))]:
            seen.set_alive(int(server), False)
        seen.source = int(rng.integers(servers)) if seen.segment else -1
        seen.count = int(rng.integers(1, 40))
        seen.deadline_s = seen.now_s + float(rng.choice([-0.1, 0.05, 0.5, 5.0]))
        seen.fifo = seen.count + int(rng.integers(100))
        seen.arrival_rate_per_s = seen.model_rates_per_s[0] = float(rng.uniform(0, 5000))
        seen.outstanding[:] = rng.integers(0, 50, size=servers)
        seen.backlog_s[:] = rng.uniform(0, 0.5, size=servers)
        states.append(seen)
    return states


@pytest.mark.parametrize("spec", SPECS)
def test_a_route_names_a_living_server_a_known_width_and_a_group(spec: str) -> None:
    cluster = cluster_for(spec)
    router = make_router(spec, cluster, seed=3)
    for seen in observations(200, len(cluster)):
        route = router.route(seen)
        if route is not None:
            assert route.server in seen.alive_ids
            assert route.choice in range(len(WIDTHS))
            assert route.group >= 1
            assert route.reason


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_seed_gives_the_same_routes(spec: str) -> None:
    def routes() -> list[Route | None]:
        cluster = cluster_for(spec)
        router = make_router(spec, cluster, seed=3)
        return [router.route(seen) for seen in observations(100, len(cluster))]

    assert routes() == routes()


@pytest.mark.parametrize("spec", SPECS)
def test_every_router_serves_the_paper_scenario_and_repeats_itself(spec: str) -> None:
    load = PAPER.with_load(rate_per_s=2000.0, seconds=0.3)
    one, two = (simulate(load, spec).summary for _ in range(2))
    assert one.completed > 0
    assert one.lost == one.duplicates == 0
    assert one.accuracy == two.accuracy
    assert one.latency_mean_s == two.latency_mean_s


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_follows_a_goal_if_its_router_takes_one(spec: str) -> None:
    assert follows_goal(spec) == (spec == "ppo" or spec.startswith(("goal", "sharded", "ppo:")))


@pytest.mark.parametrize("name", ["jsq", "sed", "speed-jsq", "slackfit", "lp"])
def test_with_nothing_to_do_and_time_enough_full_width_is_served(name: str) -> None:
    seen = Observation(len(CLUSTER))
    seen.count, seen.deadline_s, seen.arrival_rate_per_s = 1, 10.0, 1.0
    route = make_router(name, CLUSTER, seed=0).route(seen)
    assert route is not None
    assert route.choice == choice(1.0)


def test_drift_plus_penalty_pays_only_for_widths_that_buy_accuracy() -> None:
    seen = Observation(len(CLUSTER))
    seen.count, seen.segment, seen.source = 1, 3, 0
    seen.path, seen.previous = path(0.25, 0.25, 0.25), choice(0.25)
    router = make_router("drift-plus-penalty", CLUSTER, seed=0)
    best = max(range(len(WIDTHS)), key=lambda wide: MODEL.quality.accuracy((*seen.path, wide)))
    route = router.route(seen)
    assert route is not None
    assert route.choice == best == choice(1.0)


@pytest.mark.parametrize("name", ["sed", "speed-jsq", "slackfit", "lp", "drift-plus-penalty"])
def test_a_router_that_knows_speeds_avoids_the_slowest_server(name: str) -> None:
    seen = Observation(len(CLUSTER))
    seen.count, seen.deadline_s, seen.arrival_rate_per_s = 8, 1.0, 2000.0
    seen.outstanding[:], seen.backlog_s[:] = 8, [0.001, 0.001, 0.01, 0.05]
    route = make_router(name, CLUSTER, seed=0).route(seen)
    assert route is not None
    assert route.server != 3


@pytest.mark.parametrize("name", ["jsq", "sed", "slackfit", "drift-plus-penalty"])
def test_under_pressure_widths_get_narrower(name: str) -> None:
    seen = Observation(len(CLUSTER))
    seen.count, seen.deadline_s = 8, 1.0
    seen.outstanding[:], seen.backlog_s[:] = 500, 5.0
    route = make_router(name, CLUSTER, seed=0).route(seen)
    assert route is not None
    assert route.choice == choice(0.25)


def test_options_follow_the_name() -> None:
    make_router("lp:margin=1.2:every_s=0.5", CLUSTER, seed=0)
    with pytest.raises(
        ConfigError, match=r"unknown option 'speed'; its options: every_s \(a number from 0.0001"
    ):
        make_router("lp:speed=1", CLUSTER, seed=0)
    with pytest.raises(ConfigError, match="margin is 'fast'; give a number"):
        make_router("lp:margin=fast", CLUSTER, seed=0)
    with pytest.raises(ConfigError, match="size is 'many'; give a whole number"):
        make_router("sharded:many", CLUSTER, seed=0)
    with pytest.raises(ConfigError, match="shadow is 'maybe'; give true or false"):
        make_router("goal:shadow=maybe", CLUSTER, seed=0)


def test_a_list_of_routers_is_split_at_commas_outside_brackets() -> None:
    assert split_specs("sed, goal[accuracy>=75, p99<=60ms]:shadow=true,lp:margin=2,") == [
        "sed",
        "goal[accuracy>=75, p99<=60ms]:shadow=true",
        "lp:margin=2",
    ]


def test_a_class_that_does_not_route_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Lazy:\n    pass\n")
    with pytest.raises(ConfigError, match=r"is not a router: give it a method route"):
        make_router(f"{tmp_path}/own.py:Lazy", CLUSTER, seed=0)


def test_a_router_of_your_own_gets_typed_options_and_the_goal(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from typing import Literal\n"
        "class Own:\n"
        "    def __init__(self, cluster, rng, goal=None, *, way: Literal['left', 'right'] = 'left',"
        " often: int = 1):\n"
        "        self.servers, self.goal, self.way, self.often = len(cluster), goal, way, often\n"
        "    def route(self, seen): return None\n"
    )
    own = make_router(f"{tmp_path}/own.py:Own[p99<=60ms]:way=right:often=3", CLUSTER, seed=0)
    assert vars(own) == {"servers": 4, "goal": Goal(p99_s=0.06), "way": "right", "often": 3}
    with pytest.raises(ConfigError, match="way is 'up'; give one of left, right"):
        make_router(f"{tmp_path}/own.py:Own:way=up", CLUSTER, seed=0)


def test_an_unknown_router_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown router 'best'; known: random, round-robin"):
        make_router("best", CLUSTER, seed=0)


SEVERAL = small_cluster(
    (10.0, 10.0, 3.0, 1.0),
    models=[
        toy_model("family", segments=[("s", "m", "l")]),
        toy_model("exits", segments=[("exit", "on"), ("a", "b", "c")], plans=[(0,), (1, 0), (1, 2)]),
        MODEL,
    ],
)


@pytest.mark.parametrize("name", [spec for spec in SPECS if not is_bound(spec)])
def test_a_route_goes_on_with_a_choice_that_some_plan_of_the_heads_model_has(name: str) -> None:
    router, rng = make_router(name, SEVERAL, seed=3), np.random.default_rng(1)
    for seen in observations(150):
        seen.model_rates_per_s = rng.uniform(0, 2000, size=3)
        seen.model = int(rng.integers(3))
        model = SEVERAL.models[seen.model]
        begun = [path for path in model.tree.paths if not model.tree.is_plan(path)]
        seen.path = begun[int(rng.integers(len(begun)))]
        seen.segment, seen.previous = len(seen.path), model.spec.previous(seen.path)
        seen.choices = model.tree.after[seen.path]
        seen.source = int(rng.integers(len(SEVERAL))) if seen.segment else -1
        route = router.route(seen)
        assert route is not None
        assert (*seen.path, route.choice) in model.tree.row
        assert route.server in seen.alive_ids
