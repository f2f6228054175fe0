"""What only live clusters had, simulated: servers that leave, senders that hang up, an autoscaler at work."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from logs import Decoded, entries
from serving.simulated.hanging_up import hang_up
from slimsched.core.log import Log, LogWriter, replay
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.domain.request import RequestsCancelled
from slimsched.serving.gateway.messages import RecallRequests, SendBlock, ServerDown, ServerLeaving, ServerUp
from slimsched.serving.routers.autoscaler import Scale
from slimsched.serving.scenario.files import RunSetting, build_scenario, choose_scenario
from slimsched.serving.scenario.replay import machines_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import DropBlock
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Summary

AUTOSCALE = {
    "min": 1,
    "up_backlog_s": 0.05,
    "up_after_s": 0.25,
    "down_idle_s": 1.0,
    "cooldown_s": 0.5,
    "start_s": 0.3,
}


def run(
    tmp_path: Path, scenario: Scenario, raw: dict[str, object], router: str = "sed"
) -> tuple[Summary, list[Decoded]]:
    """Simulate with a log, and see that the log can be replayed."""
    path = tmp_path / "events.jsonl"
    with LogWriter(path, RunSetting(scenario=raw, router=router).header()) as writer:
        row = simulate(scenario, router, drain=True, observers=[writer]).summary
    log = Log(path)
    found = replay(log.entries(), machines_of(log.header))
    assert found.difference is None
    return row, entries(path)


def paper(**sections: object) -> tuple[Scenario, dict[str, object]]:
    chosen = choose_scenario("paper")
    raw, path = chosen.raw, chosen.path
    raw = {**raw, "accuracy": "paper", **sections}
    return build_scenario(raw, "test", path.parent), raw


def test_a_server_that_leaves_finishes_what_it_has_and_nothing_is_lost_or_begun_again(
    tmp_path: Path,
) -> None:
    scenario, raw = paper()
    scenario = scenario.with_load(rate_per_s=3000.0, seconds=1.5)
    leaves = Fault(server="server-1", at_s=0.5, kind="leave")
    row, log = run(tmp_path, scenario.with_faults((leaves,)), raw)
    assert row.completed == row.arrived > 3000
    assert (row.lost, row.duplicates, row.dropped, row.unfinished) == (0, 0, 0, 0)
    told = [e for e in log if e.machine == "gateway" and isinstance(e.event, ServerLeaving | ServerDown)]
    leaving, down = told
    assert isinstance(leaving.event, ServerLeaving)
    assert isinstance(down.event, ServerDown)
    assert 0.5 < leaving.now_s < down.now_s
    later = [c for e in log if e.now_s > leaving.now_s for c in e.commands if isinstance(c, SendBlock)]
    assert 1 not in {command.server for command in later}
    restarted = [c for c in later if c.block.key.segment == 0 and c.source != -1]
    assert not restarted
    assert not [e for e in log if e.machine == "server-1" and e.now_s > down.now_s]


def test_a_server_that_left_can_return() -> None:
    scenario, _ = paper()
    faults = (
        Fault(server="server-1", at_s=0.3, kind="leave"),
        Fault(server="server-1", at_s=0.8, kind="restore"),
    )
    row = simulate(
        scenario.with_load(rate_per_s=2000.0, seconds=1.6).with_faults(faults), "sed", drain=True
    ).summary
    assert row.completed == row.arrived
    assert (row.lost, row.duplicates) == (0, 0)


def test_senders_who_hang_up_get_no_answer_and_the_rest_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang_up(monkeypatch, 0.3, 0.05)
    scenario, raw = paper()
    row, log = run(tmp_path, scenario.with_load(rate_per_s=9000.0, seconds=0.6), raw, "random")
    assert row.drops["cancelled"] == row.dropped > 100
    assert row.completed + row.dropped == row.arrived
    assert (row.lost, row.duplicates) == (0, 0)
    assert any(isinstance(entry.event, RequestsCancelled) for entry in log if entry.machine == "gateway")
    assert any(isinstance(c, RecallRequests) for entry in log for c in entry.commands)
    assert any(isinstance(c, DropBlock) for entry in log for c in entry.commands), "servers left some out"


@pytest.mark.slow
def test_an_autoscaler_starts_servers_when_it_is_crowded_and_lets_them_leave_when_it_is_not(
    tmp_path: Path,
) -> None:
    scenario, raw = paper(autoscale=AUTOSCALE)
    shape = {"low": 3.0, "high": 0.1, "at": 0.4}  # first much, then little
    load = replace(scenario.load, rate_per_s=2000.0, seconds=6.0, arrivals="step", shape=shape)
    row, log = run(tmp_path, replace(scenario, load=load), raw)
    assert row.completed == row.arrived
    assert (row.lost, row.duplicates, row.unfinished) == (0, 0, 0)
    steps = [c for entry in log if entry.machine == "autoscaler" for c in entry.commands]
    assert all(isinstance(step, Scale) for step in steps)
    sizes = [step.servers for step in steps]
    assert max(sizes) > 1
    assert sizes[-1] < max(sizes)
    first = next(e for e in log if e.machine == "autoscaler" and e.commands)
    up = next(e for e in log if e.machine == "gateway" and isinstance(e.event, ServerUp))
    assert up.now_s >= first.now_s + 0.3, "a server takes time to start"
    assert any(isinstance(e.event, ServerLeaving) for e in log if e.machine == "gateway")
    always, _ = paper()
    whole = simulate(replace(always, load=load), "sed", drain=True).summary
    assert row.energy_idle_j < 0.9 * whole.energy_idle_j
