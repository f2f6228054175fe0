"""Moving code changes no decision: the log of each seeded run is the one on record, byte for byte."""

from pathlib import Path

import pytest

import log_hashes
from slimsched.jobs.setting import POLICIES
from slimsched.serving.routers.registry import router_names


@pytest.mark.parametrize("run", log_hashes.RUNS)
def test_a_seeded_run_leaves_the_log_on_record(run: str, tmp_path: Path) -> None:
    found, expected = log_hashes.log_hash(run, tmp_path), log_hashes.recorded().get(run)
    assert found == expected, (
        f"the log of '{run}' is {found}, on record {expected}; if decisions were meant to change, "
        "run python tests/log_hashes.py --write and say in the commit why"
    )


def test_the_record_holds_these_runs_and_no_others() -> None:
    assert list(log_hashes.recorded()) == list(log_hashes.RUNS)


def test_a_log_has_the_same_hash_whenever_and_wherever_it_is_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    assert log_hashes.log_hash("router goal", first) == log_hashes.log_hash("router goal", second)


def test_every_router_and_every_job_policy_has_a_run() -> None:
    """Whoever adds one adds a line to the runs; those of other packages that are installed are not ours."""
    rivals = {"aset", "kais", "rl"}
    routers = {name.partition(":")[0] for name in log_hashes.ROUTERS}
    policies = {name.partition(":")[0] for name in log_hashes.POLICIES}
    assert set(router_names()) - rivals == routers
    assert set(POLICIES.names()) - rivals == policies
