"""The gateway: events in, commands out, with a router that does as it is told."""

from collections.abc import Sequence

import pytest

from cluster import MODEL, choice, path, requests, small_cluster, widths, widths_of
from slimsched.core.clock import Wake, WakeAt
from slimsched.serving.domain.request import Block, DropReason, Request, RequestsCancelled, block_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    GatewayOptions,
    InputLost,
    RecallRequests,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerGivenUp,
    ServerLeaving,
    ServerUp,
)
from slimsched.serving.gateway.observation import Observation, Route


class Obedient:
    """Sends everything to the server it was told, or waits when told none."""

    def __init__(
        self, server: int | None = 0, width: float = 0.5, group: int = 4, ahead: tuple[float, ...] = ()
    ) -> None:
        self.server, self.width, self.group, self.ahead = server, width, group, ahead

    def route(self, seen: Observation) -> Route | None:
        if self.server is None or not seen.alive[self.server]:
            return None
        return Route(self.server, choice(self.width), self.group, "told so", path(*self.ahead))


class Front:
    """A gateway that routes at each event, so that a test reads top to bottom."""

    def __init__(self, router: Obedient | None = None, **options: object) -> None:
        self.router = router or Obedient()
        values: dict[str, object] = {"step_s": 0.0, **options}
        self.gateway = Gateway(small_cluster(), self.router, GatewayOptions(**values))  # type: ignore[arg-type]

    def tell(self, event: object, now_s: float = 0.0) -> list[Command]:
        commands = self.gateway.handle(event, now_s=now_s)  # type: ignore[arg-type]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def arrive(self, count: int, first: int = 0, now_s: float = 0.0, **asked: float) -> list[Command]:
        return self.tell(RequestsArrived(requests=requests(count, first=first, **asked)), now_s)

    def finish(
        self, *blocks: Block, server: int = 0, width: float = 0.5, ahead: tuple[float, ...] = ()
    ) -> list[Command]:
        done = SegmentFinished(server=server, choice=choice(width), ahead=path(*ahead), blocks=blocks)
        return self.tell(done)


def sent(commands: list[Command]) -> list[SendBlock]:
    return [command for command in commands if isinstance(command, SendBlock)]


def test_requests_go_out_in_groups_of_at_most_what_the_router_says() -> None:
    blocks = sent(Front().arrive(10))
    assert [len(command.block.requests) for command in blocks] == [4, 4, 2]
    assert [command.source for command in blocks] == [-1, -1, -1]


def test_arrivals_wait_for_the_next_scheduling_step_and_go_out_together() -> None:
    gateway = Gateway(small_cluster(), Obedient(group=8), GatewayOptions(step_s=0.005))
    assert gateway.handle(RequestsArrived(requests=requests(3)), now_s=1.0) == [WakeAt(at_s=1.005)]
    assert gateway.handle(RequestsArrived(requests=requests(2, first=3)), now_s=1.002) == []
    (block,) = sent(gateway.handle(Wake(), now_s=1.005))
    assert len(block.block.requests) == 5


def test_four_segments_later_a_request_is_answered_with_the_widths_it_ran_at() -> None:
    front = Front()
    (out,) = sent(front.arrive(1))
    for width in (0.25, 0.5, 0.75):
        front.router.width = width
        (out,) = sent(front.finish(out.block, width=width))
    assert out.block.key.segment == 3
    assert out.source == 0, "the activation lies where the segment before ran"
    (answer,) = front.finish(out.block, width=1.0)
    assert isinstance(answer, Answer)
    assert answer.requests[0].path == path(0.25, 0.5, 0.75, 1.0)
    assert front.gateway.in_system == 0


def test_parts_of_a_block_may_come_back_one_by_one() -> None:
    front = Front()
    (out,) = sent(front.arrive(4))
    one, two = out.block.split(1)
    assert [len(command.block.requests) for command in sent(front.finish(one))] == [1]
    assert [len(command.block.requests) for command in sent(front.finish(two))] == [3]
    assert front.gateway.in_system == 4


def test_what_a_dead_server_held_begins_again_from_the_image_before_all_others() -> None:
    front = Front()
    (first,) = sent(front.arrive(2))
    (second,) = sent(front.finish(first.block))
    front.router.server = 1
    (again,) = sent(front.tell(ServerDown(server=0)))
    assert again.server == 1
    assert again.source == -1
    assert [(r.id, r.path) for r in again.block.requests] == [(0, ()), (1, ())]
    assert second.block.id != again.block.id


def test_an_activation_waiting_on_a_server_dies_with_it() -> None:
    front = Front()
    (out,) = sent(front.arrive(2))
    front.router.server = None  # the next segment must wait in the queue
    front.finish(out.block)
    front.router.server = 1
    (again,) = sent(front.tell(ServerDown(server=0)))
    assert again.block.key.segment == 0
    assert front.gateway.seen.fifo == 0


def test_late_results_of_a_dead_server_are_recognised_and_ignored() -> None:
    front = Front()
    (out,) = sent(front.arrive(2))
    front.router.server = 1
    (again,) = sent(front.tell(ServerDown(server=0)))
    assert front.finish(out.block, server=0) == []
    assert len(sent(front.finish(again.block, server=1))) == 1
    assert front.finish(again.block, server=1) == [], "nor is anything taken twice"
    assert front.gateway.in_system == 2


def test_a_lost_input_begins_again() -> None:
    front = Front()
    (out,) = sent(front.arrive(1))
    (moved,) = sent(front.finish(out.block))
    (again,) = sent(front.tell(InputLost(server=0, block=moved.block)))
    assert again.block.key.segment == 0


def test_a_server_that_is_back_gets_work_again() -> None:
    front = Front()
    front.tell(ServerDown(server=0))
    assert front.arrive(1) == []
    assert len(sent(front.tell(ServerUp(server=0)))) == 1


def test_requests_whose_deadline_has_passed_are_given_up_when_asked_to() -> None:
    front = Front(early_drop=True)
    (drop,) = front.arrive(1, now_s=2.0, deadline_s=1.0)
    assert isinstance(drop, Drop)
    assert drop.reason == "deadline passed"


def test_what_a_server_gives_up_is_dropped_with_its_reason() -> None:
    front = Front()
    (out,) = sent(front.arrive(2))
    (drop,) = front.tell(BlockDropped(server=0, block=out.block, reason=DropReason.DEADLINE_OUT_OF_REACH))
    assert isinstance(drop, Drop)
    assert (len(drop.requests), drop.reason) == (2, "deadline out of reach")
    assert front.gateway.in_system == 0


def test_higher_priorities_go_first_in_every_segment() -> None:
    front = Front(Obedient(server=None))
    front.arrive(2)
    front.arrive(2, first=10, priority=3)
    front.router.server = 0
    first, second = sent(front.tell(Wake()))
    assert [r.id for r in first.block.requests] == [10, 11]
    assert [r.id for r in second.block.requests] == [0, 1]


def test_requests_of_different_places_never_share_a_block() -> None:
    front = Front()
    (one,) = sent(front.arrive(2))
    front.router.server, front.router.width = 1, 0.25
    (two,) = sent(front.arrive(2, first=10))
    front.router.server = None
    front.finish(one.block, server=0, width=0.5)
    front.finish(two.block, server=1, width=0.25)
    front.router.server = 2
    out = sent(front.tell(Wake()))
    assert [(c.source, c.block.key.previous) for c in out] == [(0, choice(0.5)), (1, choice(0.25))]


def test_the_observation_counts_what_is_out() -> None:
    front = Front()
    (out,) = sent(front.arrive(3))
    seen = front.gateway.seen
    assert seen.outstanding.tolist() == [3.0, 0.0, 0.0]
    assert seen.backlog_s[0] > 0
    front.router.server = None
    front.finish(out.block)
    assert seen.outstanding.tolist() == [0.0, 0.0, 0.0]
    assert seen.backlog_s[0] == 0
    assert seen.fifo == 3


def test_a_width_that_was_asked_for_is_served_whatever_the_router_says() -> None:
    front = Front()
    blocks = sent(front.tell(RequestsArrived(requests=(*requests(1), *requests(2, first=5, width=1.0)))))
    assert sorted((widths(c.block.key)[0], len(c.block.requests)) for c in blocks) == [(0.5, 1), (1.0, 2)]


def test_a_block_of_one_stated_width_goes_through_all_segments_without_asking_again() -> None:
    front = Front(Obedient(width=0.5))
    (out,) = sent(front.tell(RequestsArrived(requests=requests(2, width=1.0))))
    assert (out.block.key.segment, widths(out.block.key)) == (0, (1.0,) * 4)
    backlog_s = front.gateway.seen.backlog_s[0]
    assert backlog_s == pytest.approx(
        2 * sum(front.gateway.cluster.work_s[leg][0] for leg in out.block.key.legs)
    )
    (answer,) = front.finish(out.block, width=1.0, ahead=(1.0,) * 3)
    assert isinstance(answer, Answer)
    assert [widths_of(request.path) for request in answer.requests] == [(1.0,) * 4] * 2
    assert front.gateway.seen.backlog_s[0] == 0.0 < backlog_s


def test_a_server_that_dies_half_way_through_costs_no_request() -> None:
    front = Front(Obedient(width=0.5))
    front.tell(RequestsArrived(requests=requests(1, width=1.0)))
    front.router.server = 1
    (again,) = sent(front.tell(ServerDown(server=0)))
    assert (again.server, again.block.key.segment, len(again.block.key.ahead)) == (1, 0, 3)


def test_a_router_may_plan_some_segments_ahead_and_is_asked_again_after_them() -> None:
    front = Front(Obedient(width=0.5, ahead=(0.25,)))
    (out,) = sent(front.arrive(2))
    assert widths(out.block.key) == (0.5, 0.25)
    front.router.ahead = ()
    (on,) = sent(front.finish(out.block, width=0.5, ahead=(0.25,)))
    assert (on.block.key.segment, on.block.key.previous) == (2, choice(0.25))
    assert [request.path for request in on.block.requests] == [path(0.5, 0.25)] * 2


def test_what_a_server_left_of_a_plan_is_sent_out_again() -> None:
    front = Front(Obedient(width=0.5))
    (out,) = sent(front.tell(RequestsArrived(requests=requests(2, width=1.0))))
    (rest,) = sent(front.finish(out.block, width=1.0, ahead=(1.0,)))
    assert (rest.block.key.segment, widths(rest.block.key)) == (2, (1.0, 1.0))


def test_an_accuracy_floor_lifts_the_width_where_it_could_not_be_reached_any_more() -> None:
    front = Front(Obedient(width=0.25))
    (out,) = sent(front.arrive(1, min_accuracy=0.76))
    passed: tuple[int, ...] = ()
    for _ in range(3):
        passed = (*passed, out.block.key.choice)
        assert MODEL.quality.best_reachable(passed) >= 0.76
        (out,) = sent(front.finish(out.block, width=widths(out.block.key)[0]))
    assert MODEL.quality.accuracy((*passed, out.block.key.choice)) >= 0.76


def test_an_energy_ceiling_lowers_the_width() -> None:
    (free,) = sent(Front(Obedient(width=1.0)).arrive(1))
    (frugal,) = sent(Front(Obedient(width=1.0)).arrive(1, max_energy_j=0.001))
    assert (widths(free.block.key), widths(frugal.block.key)) == ((1.0,), (0.25,))


def test_cancelled_requests_are_dropped_when_next_seen_and_cost_no_more() -> None:
    front = Front(Obedient(server=None))
    front.arrive(3)
    front.tell(RequestsCancelled(requests=(1,)))
    front.router.server = 0
    commands = front.tell(Wake())
    (out,) = sent(commands)
    assert [r.id for r in out.block.requests] == [0, 2]
    assert [c.reason for c in commands if isinstance(c, Drop)] == ["cancelled"]
    front.tell(RequestsCancelled(requests=(2,)))
    commands = front.finish(out.block)
    assert [[r.id for r in c.block.requests] for c in sent(commands)] == [[0]]
    assert front.gateway.in_system == 1


def test_cancelled_requests_are_called_back_from_the_servers_that_have_them() -> None:
    front = Front(Obedient(group=2))
    first, second = sent(front.arrive(4))
    recalls = front.tell(RequestsCancelled(requests=(1, 2)))
    assert recalls == [
        RecallRequests(server=0, requests=(1,)),
        RecallRequests(server=0, requests=(2,)),
    ]
    left_out = block_of(first.block.id, first.block.key, first.block.requests[1:])
    (drop,) = front.tell(BlockDropped(server=0, block=left_out, reason=DropReason.CANCELLED))
    assert isinstance(drop, Drop)
    assert front.gateway.in_system == 3
    (on,) = sent(front.finish(block_of(first.block.id, first.block.key, first.block.requests[:1])))
    assert [request.id for request in on.block.requests] == [0]
    (late,) = sent(front.finish(second.block))
    assert [request.id for request in late.block.requests] == [3], "one that had begun is dropped then"


def test_a_server_that_leaves_gets_nothing_new_and_keeps_what_it_has() -> None:
    front = Front(Obedient(group=1))
    (out,) = sent(front.arrive(1))
    front.tell(ServerLeaving(server=0))
    assert not sent(front.arrive(1, first=1))
    front.router.server = 1
    onward = sent(front.finish(out.block))
    assert [(command.server, command.source) for command in onward] == [(1, -1), (1, 0)]
    assert not front.gateway.seen.outstanding[0]


def test_two_gateways_number_their_blocks_apart() -> None:
    first = Gateway(small_cluster(), Obedient(), GatewayOptions(step_s=0.0))
    other = Gateway(small_cluster(), Obedient(), GatewayOptions(step_s=0.0), first_block=2**40)
    numbers = [
        {command.block.id for command in sent(one.handle(RequestsArrived(requests=requests(8)), now_s=0.0))}
        for one in (first, other)
    ]
    assert not numbers[0] & numbers[1]


def test_an_answer_after_the_deadline_is_no_answer_where_clients_were_promised_so() -> None:
    class Listening(Obedient):
        def answered(self, requests: Sequence[Request], now_s: float) -> None:
            assert requests, "a router hears of real answers only"

    late, old = Front(Listening(ahead=(0.5,) * 3), early_drop=True), Front(Listening(ahead=(0.5,) * 3))
    for front, kinds in ((late, [Drop]), (old, [Answer])):
        (out,) = sent(front.arrive(2, deadline_s=1.0))
        done = SegmentFinished(server=0, choice=choice(0.5), ahead=path(*(0.5,) * 3), blocks=(out.block,))
        commands = front.tell(done, now_s=1.5)
        assert [type(command) for command in commands] == kinds
        assert front.gateway.in_system == 0


def test_a_server_that_wakes_after_its_work_was_taken_back_changes_nothing() -> None:
    front = Front(Obedient(ahead=(0.5,) * 3))
    (hung,) = sent(front.arrive(4))
    front.router.server = 1
    (again,) = sent(front.tell(ServerDown(server=0)))
    assert [r.id for r in again.block.requests] == [r.id for r in hung.block.requests]
    assert front.finish(hung.block, server=0, ahead=(0.5,) * 3) == []
    (answer,) = front.finish(again.block, server=1, ahead=(0.5,) * 3)
    assert isinstance(answer, Answer)
    assert front.finish(hung.block, server=0, ahead=(0.5,) * 3) == []
    assert front.gateway.in_system == 0


def test_what_was_cancelled_is_dropped_though_no_server_is_up() -> None:
    front = Front()
    front.arrive(3, deadline_s=1.0)
    for server in range(3):
        front.tell(ServerDown(server=server))
    (drop,) = front.tell(RequestsCancelled(requests=(1,)), now_s=0.5)
    (late,) = front.tell(RequestsCancelled(requests=(2,)), now_s=1.5)
    assert (drop.reason, late.reason) == ("cancelled", "deadline passed")  # type: ignore[union-attr]
    assert front.gateway.in_system == front.gateway.seen.fifo == 1


def test_when_no_server_will_return_everything_is_refused_at_once_with_the_reason() -> None:
    front = Front(Obedient(server=None))
    front.arrive(3)
    for server in range(3):
        front.tell(ServerDown(server=server))
    for server, left in ((0, 2), (1, 1)):
        assert front.tell(ServerGivenUp(server=server, reason="ended 5 times", left=left)) == []
    drops = front.tell(ServerGivenUp(server=2, reason="ended 5 times", left=0))
    assert {(one.reason, one.detail) for one in drops} == {("no server is left", "ended 5 times")}  # type: ignore[union-attr]
    (refused,) = front.arrive(1, first=10)
    assert refused.reason == "no server is left"  # type: ignore[union-attr]
    assert front.gateway.in_system == front.gateway.seen.fifo == 0
    assert front.gateway.given_up == dict.fromkeys(range(3), "ended 5 times")
    front.tell(ServerUp(server=0))
    front.router.server = 0
    assert sent(front.arrive(1, first=20))
    assert 0 not in front.gateway.given_up


def test_dropped_requests_do_not_count_as_waiting() -> None:
    front = Front(Obedient(server=None), early_drop=True)
    front.arrive(2, deadline_s=1.0)
    front.arrive(2, first=10)
    front.tell(RequestsCancelled(requests=(10,)))
    front.router.server = 0
    front.tell(Wake(), now_s=2.0)
    assert front.gateway.seen.fifo == 0
