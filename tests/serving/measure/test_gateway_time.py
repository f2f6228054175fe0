"""What a gateway's own work costs is read off the processor time of its thread."""

from collections.abc import Callable

import pytest

from cluster import block, requests
from slimsched.core.clock import Wake
from slimsched.serving.gateway.messages import (
    GatewayCost,
    RequestsArrived,
    SegmentFinished,
    ServerDown,
    requests_in,
)
from slimsched.serving.measure.validate import SLICE_S, USUAL_RATIO, GatewayTime

SLICES = 40


class Busy:
    """A gateway whose processor time is known: it takes its cost for each event."""

    def __init__(self, cost: GatewayCost) -> None:
        self._cost, self._busy_s, self._number = cost, 0.0, 0
        self.time = GatewayTime(lambda: self._busy_s)

    def run(self, slices: int, wakes: Callable[[int], int], arriving: Callable[[int], int]) -> GatewayCost:
        """Handle an arrival of some requests and some wake-ups in each slice; return what was measured."""
        for number in range(slices + 1):
            for event in (RequestsArrived(requests=requests(arriving(number))), *[Wake()] * wakes(number)):
                self._busy_s += self._cost.of(event)
                self.time.observe(SLICE_S * 1.001 * number, "gateway", event, [])
        return self.time.cost()


def test_events_and_requests_are_told_apart_where_slices_differ() -> None:
    cost = GatewayCost(event_s=80e-6, request_s=25e-6)
    measured = Busy(cost).run(SLICES, lambda n: 5 + 11 * n % 60, lambda n: 7 * n % 90)
    assert measured.event_s == pytest.approx(cost.event_s, rel=0.05)
    assert measured.request_s == pytest.approx(cost.request_s, rel=0.05)


@pytest.mark.parametrize("slices", [2, SLICES])
def test_they_have_the_usual_ratio_where_events_come_and_go_with_requests(slices: int) -> None:
    cost = GatewayCost(event_s=80e-6, request_s=25e-6)
    measured = Busy(cost).run(slices, lambda _: 3, lambda _: 8)
    assert 4 * measured.event_s + 8 * measured.request_s == pytest.approx(4 * 80e-6 + 8 * 25e-6)
    assert measured.request_s == pytest.approx(USUAL_RATIO * measured.event_s)


def test_neither_is_negative() -> None:
    busy_s = iter(range(1000))
    time = GatewayTime(lambda: next(busy_s) ** 2 / 1e6)
    for number in range(SLICES):
        for _ in range(5 + number):
            time.observe(SLICE_S * 1.001 * number, "gateway", Wake(), [])
        time.observe(SLICE_S * 1.001 * number, "gateway", RequestsArrived(requests=requests(50 - number)), [])
    assert time.cost().event_s >= 0.0
    assert time.cost().request_s >= 0.0


def test_what_it_takes_to_start_does_not_count_nor_do_other_machines() -> None:
    busy_s = 0.0
    time = GatewayTime(lambda: busy_s)
    time.observe(0.0, "gateway", ServerDown(server=0), [])
    busy_s = 5.0
    time.observe(5.0, "gateway", RequestsArrived(requests=requests(1)), [])
    time.observe(5.5, "server-0", RequestsArrived(requests=requests(7)), [])
    busy_s = 5.1
    time.observe(6.0, "gateway", RequestsArrived(requests=requests(4)), [])
    cost = time.cost()
    assert cost.event_s + 4 * cost.request_s == pytest.approx(0.1)


def test_a_run_without_requests_says_nothing() -> None:
    time = GatewayTime()
    time.observe(0.0, "gateway", ServerDown(server=0), [])
    assert time.cost() == GatewayCost()


def test_requests_count_in_arrivals_and_in_reports_of_batches() -> None:
    report = SegmentFinished(server=0, choice=1, blocks=(block(1, 3), block(2, 4)))
    assert requests_in(RequestsArrived(requests=requests(5))) == 5
    assert requests_in(report) == 7
    assert requests_in(Wake()) == 0
    assert GatewayCost(event_s=1.0, request_s=2.0).of(report) == 15.0
