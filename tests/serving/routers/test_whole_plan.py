"""Plans for all segments at once: where, how wide, and what deadlines make of it."""

from cluster import choice, path, widths_of
from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.options import SERVING
from slimsched.serving.routers.goal import GoalRouter
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate

LAPTOP = load_scenario("laptop")
MODEL = LAPTOP.cluster.models[0]


def widths(route: Route) -> tuple[float, ...]:
    return widths_of((route.choice, *route.ahead))


def router(spec: str = SERVING) -> GoalRouter:
    made = make_router(spec, LAPTOP.cluster, 0)
    assert isinstance(made, GuardedRouter)
    return made.router


def head(
    *, count: int = 8, deadline_s: float = 0.25, backlog_s: tuple[float, float] = (0.0, 0.0)
) -> Observation:
    seen = Observation(2)
    seen.plans, seen.count, seen.now_s, seen.arrival_s = True, count, 1.0, 1.0
    seen.deadline_s, seen.arrival_rate_per_s = 1.0 + deadline_s, 1.0
    seen.backlog_s[:] = backlog_s
    return seen


def test_a_plan_has_a_width_for_every_segment_and_an_idle_cluster_runs_at_full_width() -> None:
    route = router().route(head())
    assert widths(route) == (1.0,) * SEGMENTS


def test_a_head_in_the_middle_is_planned_to_the_end() -> None:
    seen = head()
    seen.segment, seen.previous, seen.path, seen.source = 2, choice(0.5), path(0.5, 0.5), 1
    assert len(router().route(seen).ahead) == SEGMENTS - 3


def test_the_nearer_the_backlog_comes_to_the_limit_the_narrower_all_segments_are() -> None:
    works = []
    for backlog_s in (0.05, 0.12, 0.16, 0.2):
        route = router().route(head(backlog_s=(backlog_s, backlog_s)))
        works.append(sum(widths(route)))
    assert works == sorted(works, reverse=True)
    assert works[0] == SEGMENTS
    assert works[-1] == 0.25 * SEGMENTS


def test_a_queue_that_narrows_plans_at_full_load_narrows_none_while_there_is_room_for_the_widest() -> None:
    holds_per_s, widest = capacity_per_s(LAPTOP.cluster, path(1.0, 1.0, 1.0, 1.0)), []
    for load in (0.5, 1.5):
        one = router()
        for step in range(80):  # the load is known after some time; then calls meet at both servers
            seen = head(backlog_s=(0.1, 0.1) if step == 79 else (0.0, 0.0))
            seen.now_s += 0.05 * step
            seen.arrival_s, seen.deadline_s = seen.now_s, seen.now_s + 0.25
            seen.arrival_rate_per_s = load * holds_per_s
            route = one.route(seen)
        widest.append(sum(widths(route)) == SEGMENTS)
    assert widest == [True, False]


def test_with_more_time_the_same_backlog_is_no_crowd() -> None:
    route = router().route(head(backlog_s=(0.2, 0.2), deadline_s=1.0))
    assert sum(widths(route)) == SEGMENTS


def test_a_shorter_deadline_counts_at_once_and_a_longer_one_by_and_by() -> None:
    one = router()
    one.route(head(deadline_s=1.0))
    relaxed_s = one.target_s
    seen = head(deadline_s=0.25)
    seen.now_s += 0.01
    one.route(seen)
    tight_s = one.target_s
    assert tight_s < 0.3 * relaxed_s
    seen = head(deadline_s=1.0)
    seen.now_s += 0.03
    one.route(seen)
    assert tight_s < one.target_s < 1.1 * tight_s


def test_a_stated_width_goes_where_it_is_done_first_in_fair_shares() -> None:
    seen = head(count=64, backlog_s=(0.5, 0.0))
    seen.plan = MODEL.tree.index[path(0.5, 0.5, 0.5, 0.5)]
    route = router().route(seen)
    assert (route.server, widths(route), route.group) == (1, (0.5,) * SEGMENTS, 16)


def test_requests_that_whole_plans_serve_are_in_time_and_wider_than_the_load_forces() -> None:
    holds_per_s = capacity_per_s(LAPTOP.cluster, path(1.0, 1.0, 1.0, 1.0))
    load = LAPTOP.with_load(rate_per_s=2 * holds_per_s, seconds=4.0, deadline_s=0.25)
    row = simulate(load, SERVING, drain=True).summary
    assert row.slo_attainment > 0.98
    assert row.accuracy_prior > 0.78


def stated(count: int, *, backlog_s: tuple[float, float] = (0.0, 0.0)) -> Route:
    """Ask for the widest plan on two servers that run up to 64 examples at once."""
    cluster = Cluster(
        names=LAPTOP.cluster.names,
        profiles=LAPTOP.cluster.profiles,
        models=LAPTOP.cluster.models,
        links=LAPTOP.cluster.links,
        gateway_link=LAPTOP.cluster.gateway_link,
        batch_limit=64,
    )
    seen = head(count=count, backlog_s=backlog_s)
    seen.plan = MODEL.tree.index[MODEL.spec.widest]
    return GoalRouter(cluster).route(seen)


def test_a_stated_plan_is_shared_equally_between_idle_servers() -> None:
    first = stated(64)
    assert (first.server, first.group) == (0, 32)
    work_s = 32 * float(LAPTOP.cluster.plan_s(MODEL, MODEL.spec.widest)[0])
    second = stated(32, backlog_s=(work_s, 0.0))
    assert (second.server, second.group) == (1, 32)
    assert stated(100).group == 50
    assert stated(1000).group == 64
    assert stated(20).group == 16


def test_a_stated_plan_that_waits_longer_than_it_runs_stays_together() -> None:
    route = stated(60, backlog_s=(9.0, 8.0))
    assert (route.server, route.group) == (1, 60)
