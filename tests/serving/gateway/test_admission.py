"""Admission: what cannot be answered in time is refused when it arrives."""

from math import inf

import pytest
from msgspec.structs import replace

from cluster import MODEL, path, requests, small_cluster
from slimsched.core.clock import WakeAt
from slimsched.serving.domain.request import DropReason, Request, Trail, onward
from slimsched.serving.gateway.admission import (
    FIRST_REACH,
    Admission,
    CheapestRest,
    WorkAhead,
    rank_of,
)
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    Command,
    Drop,
    GatewayOptions,
    RequestsArrived,
    RequestsRefused,
    SegmentFinished,
    SendBlock,
    ServerDown,
)
from slimsched.serving.gateway.observation import Observation, Route

CLUSTER = small_cluster((10.0, 10.0))
NARROWEST_S = CheapestRest(CLUSTER).of(0, (), -1, 0.0).work_s
"""Device time of one request at the cheapest plan; two servers do two such seconds per second."""


class InTurn:
    """Sends whole narrowest plans to the servers in turn."""

    turn = 0

    def route(self, seen: Observation) -> Route:
        self.turn += 1
        alive = seen.alive_ids
        return Route(alive[self.turn % len(alive)], 0, 8, "in turn", path(*[0.25] * (3 - seen.segment)))


class Door:
    """A gateway that admits, and what it says to each arrival."""

    def __init__(self, queue_s: float = 0.0) -> None:
        options = GatewayOptions(step_s=0.0, early_drop=True, queue_s=queue_s)
        self.gateway = Gateway(CLUSTER, InTurn(), options)
        self.count = 0

    @property
    def admission(self) -> Admission:
        assert self.gateway.admission is not None
        return self.gateway.admission

    def tell(self, event: object, now_s: float = 0.0) -> list[Command]:
        commands = self.gateway.handle(event, now_s=now_s)  # type: ignore[arg-type]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def arrive(self, count: int, now_s: float = 0.0, **asked: float) -> list[Command]:
        arrived = RequestsArrived(requests=requests(count, first=self.count, **asked))
        self.count += count
        return self.tell(arrived, now_s)

    def refused(self, count: int, **asked: float) -> DropReason | None:
        drops = [command for command in self.arrive(count, **asked) if isinstance(command, Drop)]
        assert all(len(drop.requests) == count for drop in drops), "a call is refused as a whole"
        return drops[0].reason if drops else None


def many(seconds: float) -> int:
    """How many requests the two servers answer in this time, at the cheapest plan."""
    return int(2 * seconds / NARROWEST_S)


def test_a_deadline_that_no_plan_can_meet_is_refused_at_once() -> None:
    assert Door().refused(8, deadline_s=NARROWEST_S / 10) == "deadline out of reach"


def test_a_call_is_refused_as_a_whole_if_too_much_work_is_ahead() -> None:
    door = Door()
    assert door.refused(many(0.3), deadline_s=1.0) is None
    assert door.refused(8, deadline_s=0.2) is None, "what is less urgent is not ahead"
    assert door.refused(many(0.3), deadline_s=1.0) is None
    assert door.refused(many(0.3), deadline_s=1.0) is None, "it need not be done by itself"
    assert door.refused(8, deadline_s=1.0) is DropReason.OVERLOADED
    assert door.refused(8, deadline_s=1.5) is None


def test_only_what_is_as_important_is_ahead() -> None:
    door = Door()
    door.arrive(many(0.9), deadline_s=1.0)
    assert door.refused(8, deadline_s=1.0, priority=-1) is DropReason.OVERLOADED
    assert door.refused(8, deadline_s=1.0, priority=1) is None


def test_requests_without_a_deadline_are_not_refused_unless_asked_for_and_never_ahead() -> None:
    door = Door()
    assert door.refused(many(5.0)) is None
    assert door.refused(8, deadline_s=0.2) is None
    assert door.refused(many(5.0)) is None


def finish(door: Door, commands: list[Command], now_s: float) -> None:
    """Let servers run all that was sent to them."""
    for command in commands:
        assert isinstance(command, SendBlock)
        block = command.block
        done = SegmentFinished(
            server=command.server, choice=0, ahead=block.key.ahead, blocks=(block,), size=8
        )
        (answer,) = door.tell(done, now_s)
        assert isinstance(answer, Answer)


def test_work_that_is_done_makes_room() -> None:
    door = Door()
    commands = door.arrive(many(0.9), deadline_s=1.0)
    assert door.refused(8, deadline_s=1.0) is DropReason.OVERLOADED
    finish(door, commands, 0.1)
    assert door.refused(8, deadline_s=1.0) is None


def test_without_a_deadline_a_queue_that_is_too_long_is_refused_until_it_is_short_again() -> None:
    door = Door(queue_s=2.0)
    commands = door.arrive(many(1.0))
    assert door.admission.wait_s(0) == pytest.approx(1.0, rel=0.01)
    commands += door.arrive(many(3.0))
    assert len(commands) == sum(isinstance(one, SendBlock) for one in commands), (
        "its own work is not ahead of it"
    )
    assert door.refused(1) is DropReason.QUEUE_FULL
    assert door.refused(1, priority=1) is None, "only what is as important is ahead"
    assert door.admission.wait_s(0) == pytest.approx(4.0, rel=0.01)
    finish(door, commands, 0.1)
    assert door.refused(8) is None


def test_a_long_queue_without_deadlines_keeps_out_no_deadline() -> None:
    door = Door(queue_s=1.0)
    door.arrive(many(2.0))
    assert door.refused(8) is DropReason.QUEUE_FULL
    assert door.refused(8, deadline_s=0.2) is None, "it is served first, and has its own rule"


def test_work_with_deadlines_is_ahead_of_what_has_none() -> None:
    door = Door(queue_s=1.0)
    door.arrive(many(2.0), deadline_s=5.0)
    assert door.refused(8) is DropReason.QUEUE_FULL


def test_what_waits_without_a_deadline_waits_on_when_servers_are_lost() -> None:
    door = Door(queue_s=1.0)
    door.arrive(many(0.9))
    assert not [one for one in door.tell(ServerDown(server=0), 0.1) if isinstance(one, Drop)]
    assert door.refused(8) is DropReason.QUEUE_FULL, "one server takes twice as long"
    assert not [one for one in door.tell(ServerDown(server=1), 0.2) if isinstance(one, Drop)]
    assert door.admission.wait_s(0) == 0.0


def test_half_of_the_servers_admit_half_of_the_work() -> None:
    door = Door()
    door.tell(ServerDown(server=1))
    door.arrive(many(0.45), deadline_s=1.0)
    assert door.refused(8, deadline_s=1.0) is DropReason.OVERLOADED


def test_a_stated_plan_and_a_floor_count_as_what_they_cost() -> None:
    cheapest = CheapestRest(CLUSTER)
    wide = cheapest.of(0, (), CLUSTER.models[0].tree.index[path(1.0, 1.0, 1.0, 1.0)], 0.0)
    best = CLUSTER.models[0].quality.best_reachable(())
    assert cheapest.of(0, (), -1, best).work_s == pytest.approx(wide.work_s, rel=0.5)
    assert cheapest.of(0, (), -1, 2.0).work_s == cheapest.of(0, (), -1, best).work_s, "none has more"
    half_way = cheapest.of(0, path(0.25, 0.25), -1, 0.0)
    assert 0.0 < half_way.work_s < NARROWEST_S < wide.work_s
    assert cheapest.of(0, path(0.25, 0.25, 0.25, 0.25), -1, 0.0).work_s == 0.0


def test_a_request_that_waits_too_long_is_dropped_before_it_costs_device_time() -> None:
    door = Door()
    for server in (0, 1):
        door.tell(ServerDown(server=server))
    assert door.refused(1, deadline_s=1.0) is None
    (first,) = requests(1, first=door.count, deadline_s=1.0)
    assert door.admission.loss(first, 0.5) is None
    assert door.admission.loss(first, 1.0 - NARROWEST_S / 10) is DropReason.DEADLINE_OUT_OF_REACH
    assert door.admission.loss(first, 1.0) is DropReason.DEADLINE_PASSED


def test_predictions_are_trusted_less_while_answers_come_late_and_more_while_they_do_not() -> None:
    door = Door()
    late, fine = (requests(100, first=first, deadline_s=1.0) for first in (1000, 2000))
    door.admission.admit(late, 0.0)
    door.admission.admit(fine, 0.0)
    door.admission.leave(late, 0.99)
    low = door.admission.reach
    assert low < FIRST_REACH
    door.admission.leave(fine, 0.3)
    assert low < door.admission.reach < FIRST_REACH


def test_answers_that_took_the_time_they_had_say_nothing_against_predictions() -> None:
    door, widest = Door(), onward(MODEL.key_of_path((3,)), (3, 3, 3))
    wide, further = (requests(50, first=first, deadline_s=1.0) for first in (1000, 2000))
    door.admission.admit(wide, 0.0)
    door.admission.send(wide, widest, 0)
    door.admission.leave(wide, 0.99)
    door.admission.admit(further, 0.0)
    tried = Trail(tried=(path(0.25, 0.25, 0.25, 0.25),))
    door.admission.leave([replace(request, trail=tried) for request in further], 0.99)
    assert door.admission.reach >= FIRST_REACH
    door.admission.admit(wide, 0.0)
    door.admission.send(wide, widest, 0)
    door.admission.leave(wide, 1.0, DropReason.DEADLINE_PASSED)
    assert door.admission.reach < FIRST_REACH, "late is late"


def test_what_the_door_refused_counts_as_load_for_the_router() -> None:
    door = Door()
    door.tell(RequestsRefused(counts=(80,)), 0.0)
    assert door.gateway.seen.arrival_rate_per_s == 80.0


def test_work_ahead_adds_up_by_rank() -> None:
    ahead, now_s = WorkAhead(), 100.0
    soon, later = (Request(id=n, arrival_s=now_s, deadline_s=now_s + n) for n in (1, 2))
    ahead.set(soon, 3.0)
    ahead.set(later, 5.0)
    ahead.set(later, 4.0)
    assert ahead.before(rank_of(0, now_s, now_s + 1)) == 3.0
    assert ahead.before(rank_of(0, now_s, now_s + 2)) == 7.0
    assert ahead.before(rank_of(1, now_s, now_s + 2)) == 0.0
    assert ahead.remove(soon) == 3.0
    assert ahead.remove(soon) == 0.0
    assert ahead.before((0, inf)) == 4.0


def test_work_of_a_call_may_be_changed_and_removed_in_parts() -> None:
    ahead = WorkAhead()
    call, stranger = Request(id=10, arrival_s=0.0, count=8), Request(id=3, arrival_s=0.0)
    ahead.add(call, 1.0)
    ahead.add(Request(id=20, arrival_s=0.0, count=2), 1.0)
    assert ahead.before((0, inf)) == 10.0
    ahead.set(call.part(3, 5), 0.5)
    assert ahead.before((0, inf)) == 9.0
    assert ahead.remove(stranger) == ahead.remove(Request(id=18, arrival_s=0.0)) == 0.0
    assert [ahead.remove(call.part(*part)) for part in ((6, 8), (0, 3), (3, 5), (5, 6))] == [
        2.0,
        3.0,
        1.0,
        1.0,
    ]
    assert ahead.before((0, inf)) == 2.0
