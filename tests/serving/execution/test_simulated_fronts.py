"""Calls of several examples reach a simulated gateway as over HTTP, and their answers come back."""

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from slimsched.serving.domain.bundling import HOLD_S, LONGEST_S, MOST_EXAMPLES
from slimsched.serving.domain.front_cost import FrontCost, MessageCost, Pauses
from slimsched.serving.domain.request import NEVER_S, Request
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.execution.simulated.fronts import SimulatedFronts
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.events import RequestsArrived

MS = 1e-3
H200 = load_scenario("h200")
COST = FrontCost(inward_s=(MS,), outward_s=(2 * MS,), message_s=MS)


def fronts(
    *sent_s: float, examples: int = 8, cost: FrontCost = COST, deadline_s: float = NEVER_S
) -> SimulatedFronts:
    return SimulatedFronts(cost, sent_s, examples=examples, deadline_s=deadline_s)


def test_a_call_is_one_request_that_arrives_when_it_is_read_and_takes_a_message_to_the_gateway() -> None:
    one = fronts(0.0, deadline_s=0.25)
    assert one.next_s() == pytest.approx(2 * MS)
    assert not one.take_until(1.9 * MS)
    (request,) = one.take_until(2.1 * MS)
    assert (request.id, request.count) == (0, 8)
    assert (request.arrival_s, request.deadline_s) == (pytest.approx(MS), pytest.approx(MS + 0.25))


def test_calls_gather_until_the_gateway_has_taken_the_last_message_then_go_in_one_bundle() -> None:
    some = fronts(0.0, 0.5 * MS, 0.7 * MS)
    assert len(some.take_until(2 * MS)) == 1
    assert some.next_s() == np.inf, "the gateway has not said yet that it took the first"
    some.taken(3 * MS)
    assert some.next_s() == pytest.approx(5 * MS), "its word and the next message take a millisecond each"
    (bundle,) = some.take_until(5.1 * MS)
    assert (bundle.id, bundle.count, bundle.arrival_s) == (8, 16, pytest.approx(1.5 * MS))


def test_bundles_have_the_limits_of_live_ones() -> None:
    full = fronts(*[0.0] * 5, examples=MOST_EXAMPLES // 4)
    assert [one.count for one in full.take_until(1.0)] == [MOST_EXAMPLES, MOST_EXAMPLES // 4]
    late = fronts(0.0, 2 * MS, 2 * MS + 1.1 * LONGEST_S)
    assert len(late.take_until(2 * MS)) == 1
    late.taken(9 * MS)
    assert [one.count for one in late.take_until(1.0)] == [8, 8], "the third came too late for the second's"


def test_calls_with_known_heads_gather_while_every_server_is_busy() -> None:
    some = fronts(0.0, 1.0, cost=replace(COST, gathers=True))
    some.backlog_s = lambda: 10.0
    some.take_until(2 * MS)
    some.taken(1.0)
    assert some.next_s() == pytest.approx(1.0 + MS + HOLD_S + MS)


def test_a_call_is_done_with_its_last_example_once_the_answer_is_out() -> None:
    some = fronts(0.0, 0.0)
    (bundle,) = some.take_until(1.0)
    some.answered([bundle.part(0, 12)], 5 * MS)
    some.answered([bundle.part(12, 16)], 6 * MS)
    assert some.calls().done_s == pytest.approx([7 * MS, 8 * MS])


def test_a_call_has_no_answer_if_a_part_of_it_was_dropped_or_is_too_late() -> None:
    some = fronts(0.0, 0.0, deadline_s=10 * MS)
    (bundle,) = some.take_until(1.0)
    some.answered([bundle.part(0, 4)], 5 * MS)
    some.answered([bundle.part(8, 16)], 12 * MS)
    assert np.isnan(some.calls().done_s).all()


@pytest.mark.parametrize("examples", [1, 8, 64])
def test_each_call_is_answered_exactly_once(examples: int) -> None:
    sent_s = np.sort(np.random.default_rng(0).uniform(0.0, 0.2, 200)).tolist()
    cost = replace(COST, fronts=3)
    scenario = H200.with_load(seconds=0.2, rate_per_s=1000.0)
    clients = SimulatedFronts(cost, sent_s, examples=examples)
    summary = simulate(scenario, "goal", fronts=clients, drain=True).summary
    assert (summary.arrived, summary.completed, summary.lost) == (200 * examples, 200 * examples, 0)
    assert (clients.calls().done_s - clients.calls().sent_s >= 4 * MS).all()


def took_ms(change: Callable[[FrontCost], FrontCost], messages: MessageCost | None = None) -> float:
    sent_s = np.arange(0.0, 0.2, 5 * MS).tolist()
    clients = SimulatedFronts(change(COST), sent_s, examples=8)
    scenario = replace(H200.with_load(seconds=0.2, rate_per_s=200.0), messages=messages)
    simulate(scenario, "goal", fronts=clients, drain=True)
    calls = clients.calls()
    return float((calls.done_s - calls.sent_s).mean() / MS)


def test_what_http_and_messages_take_is_in_the_latency() -> None:
    usual = took_ms(lambda cost: cost)
    slow = took_ms(lambda cost: replace(cost, inward_s=(4 * MS,), outward_s=(4 * MS,)))
    assert slow - usual == pytest.approx(5.0, abs=0.5)
    quick = took_ms(lambda cost: cost, MessageCost())
    far = took_ms(lambda cost: cost, MessageCost(to_servers_s=(3 * MS,), to_gateway_s=(MS,)))
    assert far - quick == pytest.approx(4.0, abs=0.5)


def test_ways_are_played_in_order() -> None:
    some = fronts(0.0, 10 * MS, 20 * MS, cost=replace(COST, inward_s=(MS, 3 * MS), outward_s=(MS, 2 * MS)))
    (first,) = some.take_until(2 * MS)
    some.taken(3 * MS)
    (second,) = some.take_until(14.5 * MS)
    some.taken(15 * MS)
    (third,) = some.take_until(22.5 * MS)
    assert [one.arrival_s for one in (first, second, third)] == pytest.approx([MS, 13 * MS, 21 * MS])
    some.answered([first, second, third], 30 * MS)
    assert some.calls().done_s == pytest.approx([31 * MS, 32 * MS, 31 * MS])


def test_the_gateway_stops_each_time_after_so_many_requests() -> None:
    some = fronts(0.0, cost=replace(COST, pauses=Pauses(every=3, pause_s=(5 * MS, 7 * MS))))
    requests = tuple(Request(id=one, arrival_s=0.0) for one in range(2))
    stops = [some.pause_s(RequestsArrived(requests=requests)) for _ in range(5)]
    assert stops == pytest.approx([0.0, 5 * MS, 7 * MS, 0.0, 5 * MS])
    assert some.pause_s(RequestsArrived(requests=requests * 3)) == pytest.approx(12 * MS), "two are due"


def test_what_waits_while_the_gateway_stops_is_late() -> None:
    usual = took_ms(lambda cost: cost)
    stopped = took_ms(lambda cost: replace(cost, pauses=Pauses(every=1, pause_s=(3 * MS,))))
    assert stopped - usual > 2.0, "each report comes while the gateway stands still after the arrival"
