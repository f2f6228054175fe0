"""Stopping when sure, in the gateway: answers go out, or go on from a kept activation."""

import pytest

from cluster import path, requests, small_cluster, widths
from slimsched.core.clock import Wake, WakeAt
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.request import Block, DropReason, Request, RequestsCancelled
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    Forget,
    GatewayOptions,
    InputLost,
    RecallRequests,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
)
from slimsched.serving.gateway.observation import Observation, Route, Verdict

NARROW = path(0.25, 0.25, 0.25, 0.25)


class Doubtful:
    """Runs the narrowest plan; answers with a confidence below a half go on with another plan."""

    def __init__(self, further: tuple[float, ...] = (0.25, 0.25, 1.0, 1.0), judges: bool = True) -> None:
        self.cluster, self.further, self.judges = small_cluster(), path(*further), judges

    def route(self, seen: Observation) -> Route | None:
        if not seen.alive[0]:
            return None
        choice, *ahead = NARROW[seen.segment :]
        return Route(0, choice, 16, "narrow", tuple(ahead))

    def keeps(self, model: int) -> bool:
        return self.judges

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        if confidence >= 0.5 or request.path == self.further:
            return Verdict(sure=0.9, why="sure")
        return Verdict(plan=self.cluster.models[0].tree.index[self.further], sure=0.4, hope=0.7, why="unsure")


class Front:
    def __init__(self, router: Doubtful | None = None) -> None:
        self.gateway = Gateway(small_cluster(), router or Doubtful(), GatewayOptions(step_s=0.0))

    def tell(self, event: object, now_s: float = 0.0) -> list[Command]:
        commands = self.gateway.handle(event, now_s=now_s)  # type: ignore[arg-type]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def arrive(self, count: int, *, first: int = 0) -> Block:
        (command,) = self.tell(RequestsArrived(requests=requests(count, first=first)))
        assert isinstance(command, SendBlock)
        return command.block

    def finish(self, block: Block, *confidence: float) -> list[Command]:
        choice, *ahead = block.key.choices
        done = SegmentFinished(
            server=0, choice=choice, ahead=tuple(ahead), blocks=(block,), confidence=confidence
        )
        return self.tell(done)


def test_sure_answers_go_out_and_unsure_ones_go_on_from_the_last_activation_that_both_plans_share() -> None:
    front = Front()
    block = front.arrive(3)
    assert block.keep
    onward, answer, forget = front.finish(block, 0.9, 0.1, 0.8)
    assert isinstance(onward, SendBlock)
    assert (onward.server, onward.source, onward.reason) == (0, 0, "unsure")
    assert (onward.block.key.segment, widths(onward.block.key)) == (2, (1.0, 1.0))
    assert [request.id for request in onward.block.requests] == [1]
    assert isinstance(answer, Answer)
    assert [(request.id, request.path) for request in answer.requests] == [(0, NARROW), (2, NARROW)]
    trail = answer.requests[0].trail
    assert trail is not None
    assert (trail.sure, trail.why, trail.confidence) == (0.9, "sure", 0.9)
    assert forget == Forget(server=0, requests=(0, 2))
    assert front.gateway.in_system == 1


def test_the_wider_answer_says_which_plan_ran_before() -> None:
    front = Front()
    onward, *_ = front.finish(front.arrive(1), 0.1)
    assert isinstance(onward, SendBlock)
    answer, forget = front.finish(onward.block, 0.2)
    assert isinstance(answer, Answer)
    (request,) = answer.requests
    assert request.path == path(0.25, 0.25, 1.0, 1.0)
    assert request.trail is not None
    assert request.trail.tried == (NARROW,)
    assert forget == Forget(server=0, requests=(0,))
    assert front.gateway.in_system == 0


def test_a_plan_that_shares_nothing_begins_again_from_the_input() -> None:
    front = Front(Doubtful(further=(1.0, 1.0, 1.0, 1.0)))
    onward, *_ = front.finish(front.arrive(1), 0.1)
    assert isinstance(onward, SendBlock)
    assert (onward.source, onward.block.key.segment) == (GATEWAY, 0)


def test_a_request_whose_wider_plan_is_lost_is_answered_with_what_it_has() -> None:
    for lose in ("down", "lost", "late"):
        front = Front()
        onward, *_ = front.finish(front.arrive(1), 0.1)
        assert isinstance(onward, SendBlock)
        events = {
            "down": ServerDown(server=0),
            "lost": InputLost(server=0, block=onward.block),
            "late": BlockDropped(server=0, block=onward.block, reason=DropReason.DEADLINE_OUT_OF_REACH),
        }
        answers = [command for command in front.tell(events[lose]) if isinstance(command, Answer)]
        assert [request.path for answer in answers for request in answer.requests] == [NARROW], lose
        assert front.gateway.in_system == 0


@pytest.mark.parametrize("back", ["finished", "dropped", "lost", "down"])
def test_an_answer_goes_out_before_its_deadline_and_what_comes_back_of_the_wider_plan_is_ignored(
    back: str,
) -> None:
    front = Front()
    (sent,) = front.tell(RequestsArrived(requests=requests(3, deadline_s=1.0)))
    assert isinstance(sent, SendBlock)
    onward, answer, _ = front.finish(sent.block, 0.1, 0.9, 0.2)
    assert isinstance(onward, SendBlock)
    assert isinstance(answer, Answer)
    assert front.tell(Wake(), now_s=0.9) == []
    recall, answer, forget = front.tell(Wake(), now_s=0.96)
    assert recall == RecallRequests(server=0, requests=(0, 2))
    assert isinstance(answer, Answer)
    assert [(one.id, one.path) for one in answer.requests] == [(0, NARROW), (2, NARROW)]
    assert answer.requests[0].trail is not None
    assert answer.requests[0].trail.why == "the deadline left no time for the wider plan"
    assert forget == Forget(server=0, requests=(0, 2))
    assert front.gateway.in_system == 0
    block = onward.block
    events = {
        "dropped": BlockDropped(server=0, block=block, reason=DropReason.CANCELLED),
        "lost": InputLost(server=0, block=block),
        "down": ServerDown(server=0),
    }
    if back == "finished":  # the server has kept what the wider plan gave
        assert front.finish(block, 0.9, 0.9) == [forget]
    else:
        assert front.tell(events[back]) == []
    assert front.gateway.in_system == 0
    assert not front.gateway.holds_for(0)


def test_a_cancelled_request_is_dropped_although_it_has_an_answer() -> None:
    front = Front()
    onward, *_ = front.finish(front.arrive(1), 0.1)
    assert isinstance(onward, SendBlock)
    front.tell(RequestsCancelled(requests=(0,)))
    commands = front.finish(onward.block, 0.9)
    assert [type(command) for command in commands] == [Drop, Forget]
    assert front.gateway.in_system == 0


def test_without_confidence_or_a_judge_every_answer_goes_out() -> None:
    for front, said in ((Front(), ()), (Front(Doubtful(judges=False)), (0.1, 0.1))):
        answers = [one for one in front.finish(front.arrive(2), *said) if isinstance(one, Answer)]
        assert [len(answer.requests) for answer in answers] == [2]


def test_a_stated_plan_is_not_followed_by_another() -> None:
    front = Front()
    stated = tuple(Request(id=one.id, arrival_s=0.0, plan=0) for one in requests(1))
    (command,) = front.tell(RequestsArrived(requests=stated))
    assert isinstance(command, SendBlock)
    assert any(isinstance(one, Answer) for one in front.finish(command.block, 0.1))


def test_answers_of_one_batch_are_judged_together_so_what_goes_on_is_one_block_and_one_message() -> None:
    front = Front()
    blocks = [front.arrive(2), front.arrive(2, first=2)]
    choice, *ahead = blocks[0].key.choices
    commands = front.tell(
        SegmentFinished(
            server=0,
            choice=choice,
            ahead=tuple(ahead),
            blocks=tuple(blocks),
            confidence=(0.1, 0.9, 0.9, 0.2),
        )
    )
    (sent,) = [one for one in commands if isinstance(one, SendBlock)]
    (answer,) = [one for one in commands if isinstance(one, Answer)]
    (forget,) = [one for one in commands if isinstance(one, Forget)]
    assert [request.id for request in sent.block.requests] == [0, 3]
    assert [request.id for request in answer.requests] == [1, 2] == list(forget.requests)
