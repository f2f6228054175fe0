"""The batch limit that a profile suggests."""

import copy
from pathlib import Path

import pytest
from msgspec.structs import replace

from slimsched.serving.domain.profile import DEADLINE_SHARE, ENOUGH, useful_batch, useful_size
from slimsched.serving.scenario.files import (
    CONFIGS,
    build_scenario,
    choose_scenario,
    read_profile,
    shipped_model,
)
from slimsched.serving.scenario.scenario import Scenario


def scenario(name: str, **scheduler: float) -> Scenario:
    chosen = choose_scenario(name)
    raw, path = chosen.raw, chosen.path
    raw = copy.deepcopy(raw)
    raw["scheduler"] |= scheduler
    return build_scenario(raw, path.name, Path(path).parent)


@pytest.mark.parametrize(("name", "wanted"), [("h200", {256}), ("laptop", {32}), ("paper", {128})])
def test_a_gpu_wants_large_batches_and_a_cpu_small_ones(name: str, wanted: set[int]) -> None:
    built = scenario(name, batch_limit=0)
    limits = {options.batch_limit for options in built.schedulers}
    assert limits == wanted
    assert built.cluster.batch_limit == max(limits)


def test_a_larger_batch_would_give_hardly_more_in_the_time_there_is() -> None:
    built = scenario("h200", batch_limit=0)
    cluster, longest_s = built.cluster, DEADLINE_SHARE * built.load.deadline_s
    model = cluster.models[0]
    profile, key = cluster.profiles[0], model.legs(model.spec.widest)

    def per_s(size: int) -> float:
        return size / sum(profile.latency_s(leg, size) for leg in key)

    limit = useful_batch(profile, cluster.models, longest_s)
    assert all(per_s(limit) >= ENOUGH * per_s(size) for size in profile.batches)
    assert all(
        per_s(size) < ENOUGH * max(map(per_s, profile.batches)) for size in profile.batches if size < limit
    )


def test_a_limit_in_time_makes_it_smaller() -> None:
    (unlimited, *_), (limited, *_) = (
        [one.batch_limit for one in scenario("h200", batch_limit=0, batch_limit_s=longest_s).schedulers]
        for longest_s in (0.0, 0.0005)
    )
    assert limited < unlimited
    assert scenario("h200", batch_limit=0, batch_limit_s=1e-9).schedulers[0].batch_limit == 1


def test_a_server_may_have_its_own() -> None:
    chosen = choose_scenario("h200")
    raw, path = chosen.raw, chosen.path
    raw = copy.deepcopy(raw)
    raw["server"][2]["scheduler"] = {"batch_limit": 0}
    built = build_scenario(raw, path.name, Path(path).parent)
    assert [one.batch_limit for one in built.schedulers] == [16, 16, 256]


def test_each_plan_has_its_own_limit() -> None:
    built = scenario("laptop", batch_limit=0)
    model, profile, options = built.cluster.models[0], built.cluster.profiles[0], built.schedulers[0]
    longest_s = DEADLINE_SHARE * built.load.deadline_s
    first = {plan: model.legs(plan)[0] for plan in (model.spec.widest, model.spec.narrowest)}
    useful = {plan: useful_size(profile, key, longest_s) for plan, key in first.items()}
    assert options.batch_limit_by == "profile"
    assert useful[model.spec.widest] < useful[model.spec.narrowest] <= options.batch_limit


def test_sizes_between_those_that_were_measured_count_too() -> None:
    record = read_profile(CONFIGS / "profiles" / "cpu-core.json")
    model, kept = shipped_model(), [record.batches.index(size) for size in (1, 32)]
    sparse = replace(
        record,
        batches=(1, 32),
        latency_s=[[[row[place] for place in kept] for row in rows] for rows in record.latency_s],
        energy_j=[[row[place] for place in kept] for row in record.energy_j],
    ).profile(model)
    key = model.legs(model.spec.narrowest)[0]
    assert useful_size(sparse, key, 0.9 * sparse.latency_s(key, 32)) == 16
