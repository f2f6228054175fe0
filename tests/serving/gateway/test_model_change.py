"""The gateway and the local scheduler when models come and go; a number is never used twice."""

from pathlib import Path

import pytest

from cluster import MODEL, device, flat_profile, requests, small_cluster, toy_model
from served import CONFIG
from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import Cluster, InstanceState
from slimsched.serving.domain.model import ModelEntry, ModelsChanged, ServedModel
from slimsched.serving.domain.profile import Profile, modelled_profile
from slimsched.serving.domain.request import block_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import Goal, parse_goal
from slimsched.serving.gateway.messages import (
    Answer,
    GatewayOptions,
    GoalChanged,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
)
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.catalogue import Catalogue
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scheduler.scheduler import (
    BatchFinished,
    BlockArrived,
    GreedyScheduler,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
    Started,
    UnloadInstance,
)
from stamped import stamped_folder

FAMILY = toy_model("family", segments=[("small", "large")])


class Growing:
    """Adds the family, whatever is asked for."""

    def change(self, cluster: Cluster, change: ModelsChanged) -> Cluster:
        for entry in change.added:
            model = FAMILY.numbered(entry.number)
            cluster = cluster.with_model(model, [modelled_profile(device("gpu", 4.0), model)] * len(cluster))
        return cluster.without(change.retired) if change.retired else cluster

    def router(self, cluster: Cluster, goal: Goal | None) -> Router:
        return make_router("goal", cluster, 0, goal)


ADDED = ModelsChanged(added=(ModelEntry(number=1, source="family"),))


def gateway() -> Gateway:
    cluster = small_cluster((4.0, 1.0))
    router = make_router("goal", cluster, 0)
    return Gateway(cluster, router, GatewayOptions(step_s=0.0), model_changes=Growing())


def test_requests_to_a_retired_model_are_still_answered_by_it() -> None:
    front = gateway()
    commands = front.handle(RequestsArrived(requests=requests(2)), now_s=0.0)
    (sent,) = [command for command in commands if isinstance(command, SendBlock)]
    front.handle(ModelsChanged(added=ADDED.added, retired=(0,)), now_s=0.1)
    assert [model.name for model in front.cluster.active] == ["family"]
    answered: list[int] = []
    block = sent.block
    for segment in range(4):
        assert block.key.segment == segment
        assert block.key.model == 0
        finished = SegmentFinished(server=sent.server, choice=block.key.choice, blocks=(block,))
        for command in front.handle(finished, now_s=0.2 + segment):
            if isinstance(command, SendBlock):
                sent, block = command, command.block
            elif isinstance(command, Answer):
                answered += [request.id for request in command.requests]
    assert answered == [0, 1]
    later = front.handle(RequestsArrived(requests=requests(1, first=10, model=1)), now_s=9.0)
    (new,) = [command for command in later if isinstance(command, SendBlock)]
    assert new.block.key.model == 1


def test_the_rate_of_the_first_model_is_known_before_and_after_another_comes() -> None:
    front = gateway()
    front.handle(RequestsArrived(requests=requests(3)), now_s=0.0)
    assert front.seen.model_rates_per_s.tolist() == [3.0]
    front.handle(ADDED, now_s=0.0)
    front.handle(RequestsArrived(requests=requests(2, first=10, model=1)), now_s=0.0)
    assert front.seen.model_rates_per_s.tolist() == [3.0, 2.0]


def test_a_goal_stated_before_holds_for_models_that_come_later() -> None:
    front = gateway()
    front.handle(GoalChanged(goal=parse_goal("accuracy>=70, min energy")), now_s=0.0)
    front.handle(ADDED, now_s=0.1)
    assert isinstance(front.router, GuardedRouter)
    assert [model.goal.objective for model in front.router.router.models] == ["energy", "energy"]


def test_a_gateway_that_was_not_told_where_models_come_from_says_so() -> None:
    cluster = small_cluster()
    front = Gateway(cluster, make_router("sed", cluster, 0), GatewayOptions())
    with pytest.raises(SlimError, match="cannot change its models"):
        front.handle(ADDED, now_s=0.0)


def test_the_number_of_a_model_that_failed_is_left_out(tmp_path: Path) -> None:
    stamped_folder(tmp_path / "cats", stamp=1.0)
    (tmp_path / "one.toml").write_text(CONFIG + '[[model]]\nsource = "cats"\n')
    catalogue = Catalogue(load_scenario(str(tmp_path / "one.toml")), "goal")
    cluster = load_scenario(str(tmp_path / "one.toml")).cluster
    dogs = stamped_folder(tmp_path / "dogs", stamp=2.0)
    change = ModelsChanged(added=(ModelEntry(number=3, source=str(dogs)),))
    changed = catalogue.change(cluster, change)
    assert [model.name for model in changed.models] == ["cats", "cats", "cats", "dogs"]
    assert [model.number for model in changed.active] == [0, 3]
    assert len({id(profile) for profile in changed.profiles}) == 2, "equal servers share their profile"
    again = catalogue.prepare(cluster, change, None)
    assert catalogue.change(cluster, change) is again, "what was prepared is used"


def scheduler(models: list[ServedModel], resident: tuple[str, ...] = ("widest",)) -> GreedyScheduler:
    options = SchedulerOptions(batch_limit=4, vram_cap_bytes=10**9, resident=resident)
    parts = {0: flat_profile(models=[FAMILY]), 1: _part(1)}
    return GreedyScheduler(
        options,
        parts[0],
        models,
        find=lambda entry: (FAMILY.numbered(entry.number), parts[entry.number]),
    )


def _part(number: int) -> Profile:
    return flat_profile(models=[MODEL, FAMILY]).parts[number]


def test_a_server_loads_what_a_new_model_keeps_and_lets_go_of_what_a_retired_one_had() -> None:
    server = scheduler([FAMILY])
    first = [c.instance for c in server.handle(Started(), now_s=0.0) if isinstance(c, LoadInstance)]
    for instance in first:
        server.handle(InstanceLoaded(instance=instance.id), now_s=0.1)
    loads = [c.instance for c in server.handle(ADDED, now_s=1.0) if isinstance(c, LoadInstance)]
    assert {instance.model for instance in loads} == {1}
    assert not server.is_warm(1)
    for instance in loads:
        server.handle(InstanceLoaded(instance=instance.id), now_s=1.1)
    assert server.is_warm(1)
    members = requests(1, model=1)
    block = block_of(1, server.models[1].keys[0, 0, -2], members)
    (run,) = [c for c in server.handle(BlockArrived(block=block), now_s=2.0) if isinstance(c, RunBatch)]
    gone = server.handle(ModelsChanged(retired=(1,)), now_s=2.1)
    unloaded = [c.instance for c in gone if isinstance(c, UnloadInstance)]
    assert run.batch.instance not in unloaded, "what is busy finishes first"
    for instance_id in unloaded:
        server.handle(InstanceUnloaded(instance=instance_id), now_s=2.2)
    server.handle(BatchFinished(instance=run.batch.instance, busy_s=0.1, energy_j=0.1), now_s=2.3)
    late = server.handle(Wake(), now_s=60.0)
    assert any(isinstance(c, UnloadInstance) and c.instance == run.batch.instance for c in late)
    states = [state for _, state in server.instances.of_model(0)]
    assert states
    assert set(states) == {InstanceState.FREE}


def test_a_server_that_restarts_begins_with_the_models_of_that_moment() -> None:
    server = scheduler([FAMILY])
    commands = server.handle(Started(models=(ModelEntry(number=1, source="family"),)), now_s=0.0)
    assert list(server.models) == [1]
    assert {c.instance.model for c in commands if isinstance(c, LoadInstance)} == {1}
    assert not any(isinstance(c, WakeAt) for c in commands)
