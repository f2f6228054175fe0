"""A simulated gateway whose work takes time: what comes while it is busy waits, and waiting counts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from serving.simulated.hanging_up import hang_up
from slimsched.core.clock import Timeline, Wake
from slimsched.core.log import Log, LogWriter, replay
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.domain.request import DropReason
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import Drop, Event, GatewayCost, RequestsArrived, ServerUp
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import RunSetting, choose_scenario, load_scenario
from slimsched.serving.scenario.replay import machines_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.cluster import Inbox, SimulatedCluster
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Meter, Summary
from slimsched.serving.workload.load import RequestStream

H200 = load_scenario("h200")
"""Servers that carry far more than a gateway does; whole models are planned at once."""

FAULTS = (
    Fault(server="full", at_s=0.1, kind="kill"),
    Fault(server="half", at_s=0.15, kind="leave"),
    Fault(server="full", at_s=0.3, kind="restore"),
)


def busy(rate_per_s: float, *, event_s: float = 0.0, request_s: float = 0.0, **options: Any) -> Scenario:
    gateway = replace(H200.gateway, event_s=event_s, request_s=request_s, **options)
    return replace(H200.with_load(rate_per_s=rate_per_s, seconds=0.5), gateway=gateway)


def drained(scenario: Scenario) -> Summary:
    return simulate(scenario, "sed", drain=True).summary


class Desk:
    """An inbox whose gateway decides nothing, and what it was told when."""

    def __init__(self, cost: GatewayCost, arrivals_s: Sequence[float] = ()) -> None:
        self.timeline = Timeline()
        self._stream = RequestStream(np.array(arrivals_s), examples=np.zeros(len(arrivals_s), np.int64))
        self.inbox = Inbox(cost, self.timeline, self._stream, self._tell)
        self.told: list[tuple[float, Any]] = []

    def run(self) -> list[tuple[float, Any]]:
        while self.timeline.next_s() < 100.0:
            self.timeline.advance()
        return self.told

    def _tell(self, event: Event) -> None:
        ids = [one.id for one in event.requests] if isinstance(event, RequestsArrived) else event
        self.told.append((self.timeline.now_s, ids))


def test_an_event_is_done_when_the_gateway_has_been_free_for_its_cost() -> None:
    desk = Desk(GatewayCost(event_s=1.0))
    for at_s, server in ((0.0, 0), (0.5, 1), (5.0, 2)):
        desk.timeline.at(at_s, desk.inbox.add, ServerUp(server=server))
    assert desk.run() == [(1.0, ServerUp(server=0)), (2.0, ServerUp(server=1)), (6.0, ServerUp(server=2))]


def test_requests_that_come_while_the_gateway_is_busy_are_handed_over_together() -> None:
    desk = Desk(GatewayCost(event_s=1.0, request_s=0.5), [0.0, 0.2, 0.4, 1.4, 9.0])
    assert desk.run() == [(1.5, [0]), (4.0, [1, 2, 3]), (10.5, [4])]


def test_events_keep_their_order_and_requests_take_the_place_of_the_first() -> None:
    desk = Desk(GatewayCost(event_s=1.0), [0.0, 0.6, 0.8])
    desk.timeline.at(0.5, desk.inbox.add, ServerUp(server=0))
    desk.timeline.at(0.7, desk.inbox.add, Wake())
    assert desk.run() == [(1.0, [0]), (2.0, ServerUp(server=0)), (3.0, [1, 2]), (4.0, Wake())]


def test_requests_that_the_gateway_has_not_seen_can_be_counted() -> None:
    desk = Desk(GatewayCost(event_s=1.0), [0.0, 0.5, 2.5])
    desk.timeline.advance()  # the first arrives
    desk.timeline.now_s = 0.6
    assert desk.inbox.has_requests
    assert [one.id for one in desk.inbox.take_requests()] == [0, 1]


def log_of(at: Path, scenario: Scenario, raw: dict[str, Any]) -> Path:
    with LogWriter(at, RunSetting(scenario=raw, router="sed").header()) as log:
        simulate(scenario, "sed", drain=True, observers=[log])
    return at


def test_a_gateway_that_costs_nothing_leaves_the_log_that_it_left_before_costs_were_known(
    tmp_path: Path,
) -> None:
    raw = choose_scenario("h200").raw
    before = log_of(tmp_path / "1.jsonl", H200.with_load(rate_per_s=2000.0, seconds=0.5), raw)
    free = log_of(tmp_path / "2.jsonl", busy(2000.0, event_s=0.0, request_s=0.0), raw)
    assert before.read_bytes() == free.read_bytes()


def test_a_run_with_a_busy_gateway_is_the_same_each_time_and_replays(tmp_path: Path) -> None:
    raw = choose_scenario("h200").raw
    raw["gateway"] = {**raw["gateway"], "event_s": 1e-4, "request_s": 1e-4}
    scenario = busy(3000.0, event_s=1e-4, request_s=1e-4).with_faults(FAULTS)
    one, two = (log_of(tmp_path / f"{number}.jsonl", scenario, raw) for number in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    log = Log(one)
    compared = replay(log.entries(), machines_of(log.header))
    assert compared.difference is None
    assert compared.entries > 1000


@pytest.mark.parametrize("rate_per_s", [6000.0, 12_000.0])
def test_a_full_gateway_answers_one_request_per_its_cost_however_many_arrive(rate_per_s: float) -> None:
    row = drained(busy(rate_per_s, request_s=1e-4))  # each request comes once and is reported once
    assert row.completed / row.seconds == pytest.approx(5000.0, rel=0.03)
    assert (row.completed, row.lost, row.duplicates) == (row.arrived, 0, 0)


def test_latency_grows_as_a_gateway_fills() -> None:
    rows = [drained(busy(rate, request_s=1e-4)) for rate in (1000.0, 4800.0, 8000.0)]
    calm_s, near_s, full_s = (row.latency_mean_s for row in rows)
    free_s = drained(busy(8000.0)).latency_mean_s
    assert free_s < 1.2 * calm_s < near_s < 0.2 * full_s


def test_what_waits_for_a_full_gateway_at_the_end_has_arrived_and_is_unfinished() -> None:
    row = simulate(busy(12_000.0, request_s=1e-4), "sed").summary
    assert row.arrived == simulate(busy(12_000.0), "sed").summary.arrived
    assert row.unfinished == row.arrived - row.completed > 0
    assert row.lost == 0


def test_servers_may_die_and_leave_while_the_gateway_is_full() -> None:
    row = drained(busy(6000.0, event_s=5e-5, request_s=1e-4).with_faults(FAULTS))
    assert (row.completed, row.lost, row.duplicates) == (row.arrived, 0, 0)


def test_a_run_in_pieces_is_the_same_as_in_one_piece() -> None:
    scenario, rows = busy(6000.0, event_s=5e-5, request_s=1e-4), []
    for pieces in (1, 7):
        gateway = Gateway(scenario.cluster, make_router("sed", scenario.cluster, 0), scenario.gateway)
        meter = Meter(scenario.cluster.models)
        stream = scenario.load.stream(0, scenario.cluster.models)
        simulated = SimulatedCluster(scenario, gateway, stream, observers=[meter])
        for piece in range(pieces):
            simulated.run((piece + 1) * scenario.load.seconds / pieces)
        rows.append(meter.answers().latency_s.tolist())
    assert rows[0] == rows[1] != []


class Kept:
    """An observer that keeps arrivals and drops of the gateway, with their times."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, RequestsArrived]] = []
        self.drops: list[tuple[float, Drop]] = []

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        if isinstance(event, RequestsArrived):
            self.arrivals.append((now_s, event))
        self.drops += [(now_s, command) for command in commands if isinstance(command, Drop)]


def test_a_deadline_counts_from_the_arrival_and_not_from_when_the_gateway_saw_it() -> None:
    kept = Kept()
    late = busy(8000.0, request_s=2e-4, early_drop=True).with_load(deadline_s=0.05)
    simulate(late, "sed", drain=True, observers=[kept])
    seen = [(now_s, one) for now_s, event in kept.arrivals for one in event.requests]
    assert all(one.arrival_s <= now_s for now_s, one in seen)
    assert all(one.deadline_s == pytest.approx(one.arrival_s + 0.05) for _, one in seen)
    too_late = {one.id for now_s, one in seen if one.deadline_s < now_s}
    dropped = {one.id: drop.reason for _, drop in kept.drops for one in drop.requests}
    assert too_late
    assert too_late <= set(dropped), "their time had passed when the gateway came to them"
    assert {dropped[one] for one in too_late} == {DropReason.DEADLINE_PASSED}


def test_a_sender_may_hang_up_before_the_gateway_has_seen_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hang_up(monkeypatch, 1.0, 0.02)
    row = drained(busy(8000.0, request_s=2e-4).with_load(deadline_s=10.0))
    assert row.drops[DropReason.CANCELLED] > 0.5 * row.arrived
    assert row.completed + row.dropped == row.arrived
