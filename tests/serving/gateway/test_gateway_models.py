"""The gateway with several models, and with models whose plans end early."""

import pytest

from cluster import MODEL, requests, small_cluster, toy_model
from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import SlimError
from slimsched.models.spec import ANY, START, uniform_plans
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Block, Request
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    Command,
    GatewayOptions,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
)
from slimsched.serving.gateway.observation import Observation, Route

EXITS = toy_model(
    "exits", segments=[("exit", "on"), ("exit", "on"), ("a", "b")], plans=[(0,), (1, 0), (1, 1, 0)]
)
FAMILY = toy_model("family", segments=[("small", "large")])


class Told:
    """Takes the choice it was told, and remembers what it was asked about."""

    def __init__(self, choice: int = 0, *, group: int = 4) -> None:
        self.choice, self.group = choice, group
        self.waits = False
        self.heads: list[tuple[int, int, int]] = []

    def route(self, seen: Observation) -> Route | None:
        if self.waits:
            return None
        self.heads.append((seen.model, seen.segment, seen.count))
        return Route(seen.alive_ids[0], self.choice, self.group, "told so")


class Front:
    def __init__(self, *models: ServedModel, router: Told | None = None) -> None:
        self.router = router or Told()
        cluster = small_cluster((4.0, 1.0), models=models)
        self.gateway = Gateway(cluster, self.router, GatewayOptions(step_s=0.0))

    def tell(self, event: object) -> list[Command]:
        commands = self.gateway.handle(event, now_s=0.0)  # type: ignore[arg-type]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def arrive(self, *groups: tuple[Request, ...]) -> list[SendBlock]:
        members = tuple(request for group in groups for request in group)
        return sent(self.tell(RequestsArrived(requests=members)))

    def finish(self, block: Block, choice: int, *ahead: int) -> list[Command]:
        return self.tell(SegmentFinished(server=0, choice=choice, ahead=ahead, blocks=(block,)))

    def arrive_on_two_paths(self) -> None:
        """Bring two requests past their first segment, at choices 0 and 1, and let both wait."""
        self.router.choice = 0
        (narrow,) = self.arrive(requests(1))
        self.router.choice = 1
        (wide,) = self.arrive(requests(1, first=5))
        self.router.waits = True
        self.finish(narrow.block, 0)
        self.finish(wide.block, 1)
        self.router.waits = False


def sent(commands: list[Command]) -> list[SendBlock]:
    return [command for command in commands if isinstance(command, SendBlock)]


def test_requests_of_different_models_never_share_a_block() -> None:
    front = Front(FAMILY, FAMILY, MODEL)
    blocks = front.arrive(
        requests(2), requests(2, first=10, model=1), requests(2, first=20), requests(2, first=30, model=2)
    )
    found = {send.block.key.model: [request.id for request in send.block.requests] for send in blocks}
    assert found == {0: [0, 1, 20, 21], 1: [10, 11], 2: [30, 31]}
    assert {send.block.key.model: send.block.key.previous for send in blocks} == {0: ANY, 1: ANY, 2: START}


def test_a_request_is_answered_when_its_own_models_plan_is_complete() -> None:
    front = Front(FAMILY, MODEL)
    family, slim = front.arrive(requests(1), requests(1, first=10, model=1))
    (answer,) = front.finish(family.block, 0)
    assert isinstance(answer, Answer)
    assert answer.requests[0].path == (0,)
    (onward,) = sent(front.finish(slim.block, 0))
    assert (onward.block.key.model, onward.block.key.segment) == (1, 1)
    assert front.gateway.in_system == 1


def test_an_exit_answers_at_once_and_the_others_go_on() -> None:
    front = Front(EXITS, router=Told(group=1))
    one, other = front.arrive(requests(2))
    (answer,) = front.finish(one.block, 0)
    assert isinstance(answer, Answer)
    assert answer.requests[0].path == (0,)
    front.router.choice = 1
    (on,) = sent(front.finish(other.block, 1))
    front.router.choice = 0
    (last,) = sent(front.finish(on.block, 1))
    assert last.block.key.segment == 2
    (answer,) = front.finish(last.block, 0)
    assert isinstance(answer, Answer)
    assert answer.requests[0].path == (1, 1, 0)
    assert front.gateway.in_system == 0


def test_a_stated_plan_that_ends_early_goes_no_further() -> None:
    front = Front(EXITS)
    (out,) = front.arrive(requests(1, plan=EXITS.tree.index[1, 0]))
    assert out.block.key.choices == (1, 0)
    (answer,) = front.finish(out.block, 1, 0)
    assert isinstance(answer, Answer)


def test_stated_plans_are_those_of_the_requests_own_model() -> None:
    front = Front(FAMILY, EXITS)
    family, exits = front.arrive(requests(1, plan=1), requests(1, first=5, plan=1, model=1))
    assert family.block.key.choices == (1,)
    assert exits.block.key.choices == (1, 0)


def test_terms_are_held_against_the_requests_own_model() -> None:
    weak = toy_model("weak", segments=[("s", "l")], accuracies=[0.5, 0.6])
    front = Front(FAMILY, weak)
    floor = {"min_accuracy": 0.55}
    family, other = front.arrive(requests(1, **floor), requests(1, first=5, model=1, **floor))
    assert (family.block.key.choice, other.block.key.choice) == (0, 1), "its narrowest suffices for one"


def test_models_take_turns_in_the_order_their_requests_came() -> None:
    front = Front(FAMILY, FAMILY, router=Told(group=2))
    front.router.waits = True
    front.arrive(requests(20))
    front.arrive(requests(2, first=50, model=1))
    front.arrive(requests(20, first=100))
    front.router.waits = False
    blocks = sent(front.tell(Wake()))
    models = [send.block.key.model for send in blocks]
    assert models.index(1) == 10, "after the twenty that came before it, before those that came after"


def test_where_paths_differ_but_previous_does_not_matter_requests_share_a_block() -> None:
    front = Front(toy_model(), router=Told(group=8))
    front.arrive_on_two_paths()
    front.router.choice = 1
    (both,) = sent(front.tell(Wake()))
    assert [request.path for request in both.block.requests] == [(0,), (1,)]
    (answer,) = front.finish(both.block, 1)
    assert isinstance(answer, Answer)
    assert [request.path for request in answer.requests] == [(0, 1), (1, 1)]


def test_requests_that_cannot_go_on_alike_never_share_a_block() -> None:
    segments = [("small", "large"), ("small", "large")]
    front = Front(toy_model(segments=segments, plans=uniform_plans(segments)), router=Told(group=8))
    front.arrive_on_two_paths()
    front.router.choice = 0
    first = sent(front.tell(Wake()))[0]
    assert [request.path for request in first.block.requests] == [(0,)], (
        "only one may go on at the first choice"
    )


def test_a_choice_that_the_model_has_not_is_an_error_of_the_router() -> None:
    front = Front(FAMILY, router=Told(choice=2))
    with pytest.raises(SlimError, match="the choice one of the model's"):
        front.arrive(requests(1))


def test_requests_of_all_models_begin_again_when_their_server_dies() -> None:
    front = Front(FAMILY, MODEL)
    front.arrive(requests(2), requests(1, first=10, model=1))
    again = sent(front.tell(ServerDown(server=0)))
    assert sorted((send.block.key.model, len(send.block.requests)) for send in again) == [(0, 2), (1, 1)]
    assert {send.source for send in again} == {-1}


def test_the_observation_knows_the_rate_of_each_model() -> None:
    front = Front(FAMILY, MODEL)
    front.arrive(requests(6), requests(2, first=10, model=1))
    assert front.gateway.seen.model_rates_per_s.tolist() == [6.0, 2.0]
    assert front.gateway.seen.arrival_rate_per_s == 8.0
