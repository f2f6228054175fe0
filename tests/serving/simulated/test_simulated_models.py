"""Models of all kinds on a simulated cluster, alone and beside each other, under every router."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import MODEL, small_cluster, toy_model
from slimsched.models.spec import Path, uniform_plans
from slimsched.serving.domain.cluster import Cluster, Fault
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.gateway.bounds import fluid_optimum
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.routers.goal import GoalRouter
from slimsched.serving.routers.registry import ROUTERS
from slimsched.serving.scenario.scenario import Scenario, TelemetryOptions
from slimsched.serving.scheduler.scheduler import RunBatch, SchedulerOptions
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Summary, Trace
from slimsched.serving.workload.load import Load

MACS = 50_000_000
FAMILY = toy_model("family", segments=[("s", "m", "l", "xl")], macs=MACS)
TWIN = toy_model("twin", segments=[("s", "m", "l", "xl")], macs=MACS)
EXITS = toy_model(
    "exits",
    segments=[("exit", "on"), ("exit", "on"), ("a", "b")],
    plans=[(0,), (1, 0), (1, 1, 0), (1, 1, 1)],
    macs=MACS,
)
UNEVEN = toy_model(
    "uneven", segments=[("s", "l"), ("s", "m", "l")], follows_previous=True, nested=True, macs=MACS
)
SPEEDS = (2.0, 2.0, 0.6)


def scenario(
    *models: ServedModel,
    load: float = 0.7,
    shares: Sequence[float] = (),
    seconds: float = 1.0,
    warmup_s: float = 0.0,
    batch_limit: int = 8,
    **scheduler: object,
) -> Scenario:
    """Three unequal servers; a load of 1 keeps them busy when all requests take their widest plan."""
    cluster = small_cluster(SPEEDS, batch_limit, models=models)
    mix = shares or [1.0 / len(models)] * len(models)
    options = SchedulerOptions(batch_limit=batch_limit, **scheduler)  # type: ignore[arg-type]
    return Scenario(
        name="models",
        description="made for a test",
        cluster=cluster,
        schedulers=(options,) * len(cluster),
        gateway=GatewayOptions(),
        telemetry=TelemetryOptions(),
        load=Load(rate_per_s=load * widest_per_s(cluster, mix), seconds=seconds, warmup_s=warmup_s),
        shares=tuple(mix),
    )


def widest_per_s(cluster: Cluster, shares: Sequence[float]) -> float:
    """Requests per second, of all models together, that the cluster can serve by their widest plans."""
    each_s = sum(
        share * cluster.plan_s(model, model.spec.widest)
        for share, model in zip(shares, cluster.models, strict=True)
    )
    return float((1.0 / each_s).sum())


def run(at: Scenario, router: str, *, drain: bool = True, seed: int = 0) -> Summary:
    return simulate(at, router, drain=drain, seed=seed).summary


def assert_all_answered_once(row: Summary) -> None:
    assert row.completed == row.arrived > 0
    assert (row.lost, row.duplicates, row.dropped, row.unfinished) == (0, 0, 0, 0)


class Batches:
    """An observer that holds every batch against the models of its requests."""

    def __init__(self) -> None:
        self.models: set[int] = set()

    def observe(self, now_s: float, machine: str, event: object, commands: list[object]) -> None:
        for command in commands:
            if isinstance(command, RunBatch):
                batch = command.batch
                assert {one.model for block in batch.blocks for one in block.requests} == {batch.key.model}
                self.models.add(batch.key.model)


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_serves_two_models_and_every_request_is_answered_once(router: str) -> None:
    at = scenario(MODEL, EXITS, batch_limit=16, seconds=0.5)
    batches = Batches()
    row = simulate(at, router, drain=True, observers=[batches]).summary  # type: ignore[list-item]
    assert_all_answered_once(row)
    assert batches.models == {0, 1}
    assert sum(one.completed for one in row.models.values()) == row.completed
    assert min(one.completed for one in row.models.values()) > 0.4 * row.completed


@pytest.mark.parametrize("router", [name for name in ROUTERS if not name.startswith("ppo-")])
@pytest.mark.parametrize("model", [FAMILY, EXITS, UNEVEN], ids=lambda model: model.name)
def test_every_router_serves_a_model_of_any_kind(router: str, model: ServedModel) -> None:
    assert_all_answered_once(run(scenario(model, load=1.2, seconds=0.3), router))


@pytest.mark.parametrize("router", ["random", "sed", "lp", "goal"])
def test_no_request_of_any_model_is_lost_when_a_server_dies_and_returns(router: str) -> None:
    faults = (
        Fault(server="server-0", at_s=0.2, kind="kill"),
        Fault(server="server-0", at_s=0.6, kind="restore"),
    )
    at = scenario(FAMILY, EXITS, UNEVEN, load=0.5).with_faults(faults)
    assert_all_answered_once(run(at, router))


@st.composite
def drawn_models(draw: st.DrawFn) -> ServedModel:
    """A model of 1 to 3 segments in which every choice but the last of a segment may end a plan."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    names = [tuple(f"{segment}.{number}" for number in range(size)) for segment, size in enumerate(sizes)]
    ends = [{number for number in range(size - 1) if draw(st.booleans())} for size in sizes[:-1]]

    def cut(whole: Path) -> Path:
        for segment, choice in enumerate(whole[:-1]):
            if choice in ends[segment]:
                return whole[: segment + 1]
        return whole

    plans = dict.fromkeys(cut(whole) for whole in product(*map(range, sizes)))
    follows, nested = draw(st.booleans()), draw(st.booleans())
    return toy_model("drawn", segments=names, plans=list(plans), follows_previous=follows, nested=nested)


@settings(max_examples=25, deadline=None)
@given(
    drawn_models(),
    st.sampled_from(["random", "round-robin", "sed", "slackfit", "lp", "goal"]),
    st.sampled_from(["fifo", "deadline"]),
)
def test_whatever_the_model_is_like_every_request_is_answered_once(
    model: ServedModel, router: str, order: str
) -> None:
    at = scenario(
        model,
        FAMILY,
        load=0.8,
        seconds=0.05,
        order=order,
    )
    assert_all_answered_once(run(at, router))


def test_plans_need_not_combine_freely() -> None:
    segments = [("s", "m", "l"), ("s", "m", "l")]
    model = toy_model(segments=segments, plans=uniform_plans(segments), macs=MACS)
    assert_all_answered_once(run(scenario(model), "random"))


@pytest.mark.parametrize("router", ["random", "jsq", "sed", "goal"])
def test_a_rare_model_waits_no_longer_than_a_common_one(router: str) -> None:
    """It is not loaded when its next request comes, while the devices are busy with the other model."""
    at = scenario(FAMILY, TWIN, load=1.2, shares=(0.997, 0.003), seconds=4.0, idle_unload_s=0.3)
    common, rare = run(at, router, drain=False).models.values()
    assert rare.completed > 0.7 * common.completed * 0.003 / 0.997
    assert rare.latency_mean_s < 1.5 * common.latency_mean_s + 0.05


def deadline_order(**scheduler: object) -> Summary:
    at = scenario(FAMILY, TWIN, load=1.0, shares=(0.997, 0.003), seconds=6.0, order="deadline", **scheduler)
    return run(at, "sed", drain=False)


def test_in_deadline_order_a_rare_model_does_not_starve() -> None:
    common, rare = deadline_order(idle_unload_s=0.3).models.values()
    assert rare.completed > 0.7 * common.completed * 0.003 / 0.997


def test_in_deadline_order_a_rare_model_that_stays_loaded_does_not_starve() -> None:
    common, rare = deadline_order(resident=("widest",)).models.values()
    assert rare.completed > 0.7 * common.completed * 0.003 / 0.997


def share_of_bound(at: Scenario, trace: Trace) -> float:
    """Value per request that arrived, over that of the joint fluid bound at the rates that were drawn."""
    models, answers, row = at.cluster.models, trace.answers, trace.summary
    counts = np.bincount(answers.model, minlength=len(models))
    bound = fluid_optimum(at.cluster, row.arrived / row.seconds, shares=counts / counts.sum())
    weights = np.array([model.weight for model in models])
    value = sum(
        model.weight * model.quality.by_plan[answers.plan[answers.model == model.number]].sum()
        for model in models
    )
    answered = min(1.0, row.completed / row.arrived)
    return float(answered * value / (weights @ counts) / bound.accuracy)


PAIRS = {
    "slimresnet and a family": ((MODEL, FAMILY), (0.5, 0.5)),
    "slimresnet and exits": ((MODEL, EXITS), (0.3, 0.7)),
    "exits and a family": ((EXITS, FAMILY), (0.4, 0.6)),
}


@pytest.mark.parametrize("load", [0.7, 1.0])
@pytest.mark.parametrize("pair", PAIRS)
def test_goal_comes_close_to_the_joint_bound_of_two_models(pair: str, load: float) -> None:
    models, shares = PAIRS[pair]
    at = scenario(*models, load=load, shares=shares, seconds=4.0, warmup_s=1.5)
    assert share_of_bound(at, simulate(at, "goal")) >= 0.98


def test_goal_gives_a_model_that_weighs_more_more() -> None:
    heavy = toy_model("heavy", segments=FAMILY.spec.segments, macs=MACS, weight=3.0)
    at = scenario(heavy, FAMILY, load=1.5, seconds=4.0, warmup_s=1.5)
    trace = simulate(at, "goal")
    figures = trace.summary.models
    assert figures["heavy"].accuracy_prior > figures["family"].accuracy_prior + 0.05
    assert share_of_bound(at, trace) >= 0.97


def with_goals(at: Scenario, **goals: Goal) -> Summary:
    def goal_router(cluster: Cluster) -> GoalRouter:
        return GoalRouter(cluster, Goal(by_model=goals))

    return simulate(at, goal_router).summary


@pytest.mark.parametrize("floor", [0.86, pytest.param(0.885, marks=pytest.mark.slow)])
def test_a_floor_is_kept_beside_another_model_that_pays_for_it(floor: float) -> None:
    at = scenario(FAMILY, TWIN, load=1.5, seconds=6.0, warmup_s=3.0)
    free, floored = with_goals(at), with_goals(at, family=Goal(min_accuracy=floor))
    assert free.models["family"].accuracy_prior < floor - 0.01
    assert floored.models["family"].accuracy_prior >= floor - 0.003
    assert floored.models["twin"].accuracy_prior < free.models["twin"].accuracy_prior - 0.01
    assert floored.completed > 0.98 * floored.arrived


def floor_of_slimresnet(**scheduler: object) -> float:
    """Its accuracy with a floor of 75.5 % at twice the load; the fluid bound shows that there is room."""
    at = scenario(MODEL, FAMILY, load=2.0, seconds=8.0, warmup_s=5.0, **scheduler)
    return with_goals(at, slimresnet=Goal(min_accuracy=0.755)).models["slimresnet"].accuracy_prior


@pytest.mark.slow
def test_a_floor_is_kept_where_the_choices_it_takes_stay_loaded() -> None:
    assert floor_of_slimresnet(resident=("widest",)) >= 0.752


@pytest.mark.slow
def test_a_floor_is_kept_where_the_choices_it_takes_must_be_loaded_again() -> None:
    assert floor_of_slimresnet() >= 0.752
