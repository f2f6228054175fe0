"""Stopping when sure, as a whole: simulated runs, their replay, confidence that lies, kept activations."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from slimsched.core.log import Log, LogWriter, replay
from slimsched.models.quality import Confidences, QualityTable
from slimsched.serving.domain.cluster import Cluster, Fault
from slimsched.serving.domain.request import Batch, Key, Request, block_of, onward
from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum
from slimsched.serving.gateway.messages import Answer
from slimsched.serving.live.batches import ActivationStore, BatchRun, run_batch
from slimsched.serving.live.executor import CpuExecutor, HostedModel
from slimsched.serving.routers.guard import GuardedRouter
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import RunSetting, choose_scenario, load_elastic, load_scenario
from slimsched.serving.scenario.replay import machines_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate

LAPTOP = load_scenario("laptop")
MODEL = LAPTOP.cluster.models[0]
RATE = 2.0 * capacity_per_s(LAPTOP.cluster, MODEL.spec.widest)
BUSY = LAPTOP.with_load(rate_per_s=RATE, seconds=12.0, warmup_s=2.0)


@pytest.mark.slow
def test_goal_answers_more_correctly_when_it_may_go_on_and_keeps_deadlines() -> None:
    sure, blind = (simulate(BUSY, router).summary for router in ("goal:sure=true", "goal"))
    assert sure.accuracy > blind.accuracy + 0.002
    assert sure.slo_attainment > 0.99
    assert (sure.lost, sure.duplicates) == (0, 0)


def test_where_time_is_nearly_free_it_is_no_worse_than_without() -> None:
    easy = LAPTOP.with_load(rate_per_s=0.65 * RATE, seconds=10.0, warmup_s=2.0)
    sure, blind = (simulate(easy, f"goal:in_time=0.7{more}").summary for more in (":sure=true", ""))
    assert sure.accuracy > blind.accuracy - 0.005
    assert sure.slo_attainment > 0.98


def test_the_bound_of_routers_that_look_is_above_the_input_blind_one() -> None:
    blind, sure = (fluid_optimum(LAPTOP.cluster, 2 * RATE, sure=sure) for sure in (False, True))
    assert blind.accuracy + 0.003 < sure.accuracy < blind.accuracy + 0.03
    assert 0.05 < sure.further < 0.9
    idle = fluid_optimum(LAPTOP.cluster, 1.0, sure=True)
    assert idle.accuracy >= fluid_optimum(LAPTOP.cluster, 1.0).accuracy - 1e-9


@pytest.mark.parametrize("name", ["laptop", pytest.param("paper", marks=pytest.mark.slow)])
def test_a_run_that_stops_when_sure_replays(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)
    rate = 1.5 * capacity_per_s(scenario.cluster, MODEL.spec.widest)
    busy = scenario.with_load(rate_per_s=rate, seconds=0.5)
    header = RunSetting(scenario=choose_scenario(name).raw, router="goal:sure=true", seed=0).header()
    with LogWriter(tmp_path / "run.jsonl", header) as log:
        simulate(busy, "goal:sure=true", observers=[log])
    read = Log(tmp_path / "run.jsonl")
    replayed = replay(read.entries(), machines_of(read.header))
    assert replayed.difference is None
    assert '"not sure enough' in (tmp_path / "run.jsonl").read_text()


def test_what_is_expected_of_answers_that_went_on_is_what_they_give_so_floors_hold() -> None:
    """Examples that go on are hard: the second plan is surer of them than it is right."""
    goal, load = "goal:sure=true[accuracy>=80, min energy]", {"rate_per_s": 0.5 * RATE, "seconds": 16.0}
    answers: list[Request] = []

    class Listener:
        def observe(self, now_s: float, machine: str, event: object, commands: Sequence[object]) -> None:
            for answer in [one for one in commands if isinstance(one, Answer)]:
                answers.extend(one for one in answer.requests if one.trail is not None and one.trail.tried)

    row = simulate(LAPTOP.with_load(**load, warmup_s=4.0), goal, observers=[Listener()]).summary
    expected = np.mean([one.trail.sure for one in answers if one.trail is not None])
    right = np.mean([MODEL.scored.is_correct(one.path, one.example) for one in answers])
    deviation = 0.5 / np.sqrt(len(answers))
    assert len(answers) > 500
    assert expected < right + 3.0 * deviation
    assert row.accuracy > 0.8 - 3.0 * 0.4 / np.sqrt(row.completed)


def test_servers_that_die_lose_no_request_that_was_going_on() -> None:
    faults = (Fault(server="fast", kind="kill", at_s=1.0), Fault(server="fast", kind="restore", at_s=2.0))
    broken = replace(LAPTOP, faults=faults).with_load(rate_per_s=RATE / 2, seconds=4.0)
    row = simulate(broken, "goal:sure=true", drain=True).summary
    assert (row.lost, row.duplicates, row.unfinished) == (0, 0, 0)


def always_sure(scenario: Scenario) -> Scenario:
    """The same scenario with a model that is as sure of every example as it was of its surest ones."""
    told = MODEL.measured.confidences
    assert told is not None
    lies = Confidences(
        plans=told.plans, edges=told.edges, levels=np.full_like(told.levels, 15), agrees=told.agrees
    )
    quality, honest = MODEL.measured, MODEL.measured.split()[0].escalation
    liar = MODEL.with_quality(
        QualityTable(
            quality.tree,
            name=quality.name,
            accuracy=quality.by_plan,
            correct=quality._correct,
            examples=quality.examples,
            confidences=lies,
        )
    )
    liar.quality.__dict__["escalation"] = honest  # measured when it still told the truth
    cluster = scenario.cluster
    lying = Cluster(
        names=cluster.names,
        profiles=cluster.profiles,
        models=[liar],
        links=cluster.links,
        gateway_link=cluster.gateway_link,
        batch_limit=cluster.batch_limit,
    )
    lying.models[0].quality.__dict__["escalation"] = honest
    return replace(scenario, cluster=lying)


@pytest.mark.slow
def test_confidence_that_lies_is_noticed_by_checks_and_no_longer_relied_on() -> None:
    made: list[GuardedRouter] = []

    def sure(cluster: Cluster, seed: int) -> GuardedRouter:
        router = make_router("goal:sure=true", cluster, seed)
        assert isinstance(router, GuardedRouter)
        made.append(router)
        return router

    load = {"rate_per_s": 0.8 * RATE, "seconds": 50.0, "warmup_s": 35.0}
    row = simulate(always_sure(LAPTOP).with_load(**load), sure).summary
    trust = made[0].router.trust[MODEL.name]
    assert not trust.holds
    assert trust.agreed < trust.expected - 0.05
    blind = simulate(LAPTOP.with_load(**load), "goal").summary
    assert row.accuracy > blind.accuracy - 0.015, "it works as well as without confidence"


class Device:
    """The shipped model on this machine's CPU, with its activations."""

    def __init__(self, examples: int = 6) -> None:
        hosted = HostedModel(MODEL, load_elastic(MODEL), torch.device("cpu"))
        self.executor, self.store = CpuExecutor([hosted]), ActivationStore()
        self.images = torch.randint(0, 256, (examples, 3, 32, 32), dtype=torch.uint8)
        self.ids = list(range(examples))

    def run(self, key: Key, ids: list[int]) -> BatchRun:
        requests = tuple(Request(id=number, arrival_s=0.0) for number in ids)
        block = block_of(1, key, requests, keep=True)
        also = (0,) * len(key.ahead)
        return run_batch(
            self.executor,
            self.store,
            Batch(id=0, key=key, instance=0, blocks=(block,), size=len(ids), also=also),
        )


def key_of_plan(plan: tuple[int, ...], start: int = 0) -> Key:
    return onward(MODEL.key_of_path(plan[: start + 1]), plan[start + 1 :])


def test_a_plan_that_goes_on_from_a_kept_activation_gives_what_it_gives_alone() -> None:
    device, narrow, wide = Device(), (0, 0, 0, 0), (0, 0, 3, 3)
    device.store.put(device.ids, (device.images,))
    first = device.run(key_of_plan(narrow), device.ids)
    assert len(first.confidence) == len(first.top) == 6
    assert all(0.0 <= value <= 1.0 for value in first.confidence)
    some = [1, 4, 5]
    device.store.revive(some, 2)
    onward_ = device.run(key_of_plan(wide, 2), some)
    device.store.put(device.ids, (device.images,))
    alone = device.run(key_of_plan(wide), device.ids)
    logits = np.frombuffer(alone.outputs[0], np.float32).reshape(6, -1)[some]
    np.testing.assert_allclose(
        np.frombuffer(onward_.outputs[0], np.float32).reshape(3, -1), logits, atol=0.15
    )
    device.store.forget(device.ids)
    device.store.revive(device.ids, 2)
    assert not device.store.has(device.ids)


def test_a_batch_that_is_padded_gives_and_keeps_only_its_own_rows() -> None:
    device, narrow = Device(19), (0, 0, 0, 0)
    device.store.put(device.ids, (device.images,))
    padded = device.run(key_of_plan(narrow), device.ids)
    assert len(padded.confidence) == len(padded.top) == 19
    logits = np.frombuffer(padded.outputs[0], np.float32).reshape(19, -1)
    for number in (0, 18):
        device.store.put([number], (device.images[number : number + 1],))
        alone = device.run(key_of_plan(narrow), [number])
        np.testing.assert_allclose(np.frombuffer(alone.outputs[0], np.float32), logits[number], atol=0.15)
    device.store.revive(device.ids, 2)
    assert len(device.store.take(device.ids)[0]) == 19
