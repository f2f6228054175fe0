"""Profiles of joined models come from their members, if those were measured on one machine."""

from pathlib import Path

import msgspec
import pytest

from slimsched.kernel.errors import DataError
from slimsched.serving.domain.profile_record import ProfileRecord
from slimsched.serving.execution.model_source import read_model
from slimsched.serving.execution.scenario_file import CONFIGS, load_profile, load_scenario, read_profile
from slimsched.serving.execution.simulated.simulation import simulate

PAIR = read_model("slimpair")


def test_a_step_costs_what_it_costs_in_its_member() -> None:
    joined = load_profile("h200-50", PAIR, CONFIGS)
    for name in ("slimresnet", "slimvit"):
        alone = read_model(name)
        profile = load_profile("h200-50", alone, CONFIGS)
        theirs = alone.legs(alone.spec.path("0.25,1.0,0.5,0.75"))
        ours = PAIR.legs(PAIR.spec.path(f"{name}-0.25,{name}-1.0,{name}-0.5,{name}-0.75"))
        for one, other in zip(ours, theirs, strict=True):
            assert joined.latencies_s(one, 16) == profile.latencies_s(other, 16)
            assert joined.energy_j(one, 16) == profile.energy_j(other, 16)
            assert joined.instance_bytes[one.place] == profile.instance_bytes[other.place]


def test_a_data_sheet_gives_a_joined_model_a_profile_too() -> None:
    joined = load_profile("rtx-2080-ti", PAIR, CONFIGS)
    assert set(joined.latency_table_s) == set(PAIR.keys.values())


def test_profiles_of_two_machines_are_not_joined(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    record = msgspec.structs.replace(
        read_profile(CONFIGS / "profiles" / "h200-50.json"), source="measured: another"
    )
    assert isinstance(record, ProfileRecord)
    (tmp_path / "profiles" / "h200-50.json").write_bytes(msgspec.json.encode(record))
    with pytest.raises(DataError, match=r"its members were measured on two machines .*measured: another"):
        load_profile("h200-50", PAIR, tmp_path)


def test_a_router_chooses_between_the_networks() -> None:
    pair = load_scenario("h200", models=["slimpair"])
    scenario = pair.with_load(rate_per_s=3000, seconds=0.1, warmup_s=0.0)
    row = simulate(scenario, "random", seed=0, bound_accuracy=1.0).summary
    assert row.completed > 250
    assert {name.partition("-")[0] for name, share in row.choices.items() if share} == {
        "slimresnet",
        "slimvit",
    }
