"""Examples that come as one request are treated exactly as if each had come alone.

Two gateways are told the same, one of them in requests of several examples, the other example by example.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster import path, small_cluster
from slimsched.serving.domain.request import (
    NEVER_S,
    Block,
    DropReason,
    Request,
    RequestsCancelled,
    each_example,
    ids_of,
)
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import (
    Answer,
    BlockDropped,
    Command,
    Drop,
    Event,
    Forget,
    GatewayOptions,
    InputLost,
    RecallRequests,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
    ServerDown,
    ServerUp,
)
from slimsched.serving.gateway.observation import Observation, Route

CLUSTER = small_cluster((10.0, 10.0))
GROUP = 5
"""Examples per block: other than the sizes of calls, so that blocks cut them."""

sizes = st.integers(1, 8)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), sizes, st.sampled_from([NEVER_S, 0.004, 0.05, 1.0])),
        st.tuples(st.just("finish"), st.integers(0, 9), st.integers(0, 6)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.integers(0, 6)),
        st.tuples(st.just("lose input"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 60), sizes),
        st.tuples(st.just("die"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


class InTurn:
    """Sends blocks to the servers in turn, at width 0.25, two segments at a time."""

    turn = 0

    def route(self, seen: Observation) -> Route | None:
        self.turn += 1
        if self.turn % 7 == 0:
            return None
        ahead = path(0.25) if seen.segment < 3 else ()
        return Route(seen.alive_ids[self.turn % len(seen.alive_ids)], 0, GROUP, "in turn", ahead)


class Pair:
    """Both gateways, and the blocks that they have sent."""

    def __init__(self, **options: Any) -> None:
        self.together, self.alone = (
            Gateway(CLUSTER, InTurn(), GatewayOptions(step_s=0.0, **options)) for _ in range(2)
        )
        self.blocks: list[tuple[int, Block]] = []
        self.ends: list[int] = []
        self.now_s = 0.0

    def tell(self, event: Event) -> None:
        self.now_s += 0.001
        commands = self.together.handle(event, now_s=self.now_s)
        others = self.alone.handle(one_by_one(event), now_s=self.now_s)
        assert outline(commands) == outline(others)
        assert self.together.in_system == self.alone.in_system
        assert self.together.seen.fifo == self.alone.seen.fifo
        assert self.together.seen.outstanding.tolist() == self.alone.seen.outstanding.tolist()
        assert sorted(self.together.census()) == sorted(self.alone.census())
        for command in commands:
            if isinstance(command, SendBlock):
                self.blocks.append((command.server, command.block))
            elif isinstance(command, Answer | Drop):
                self.ends += ids_of(command.requests)

    def take(self, number: int, size: int) -> tuple[int, Block] | None:
        """Take out a block that was sent, or the first part of it."""
        if not self.blocks:
            return None
        server, block = self.blocks.pop(number % len(self.blocks))
        if 0 < size < block.examples:
            block, rest = block.split(size)
            self.blocks.append((server, rest))
        return server, block


def one_by_one(event: Event) -> Event:
    """The same event in requests of one example each."""
    match event:
        case RequestsArrived(requests=requests):
            return RequestsArrived(requests=tuple(each_example(requests)))
        case SegmentFinished(blocks=blocks):
            return replace(event, blocks=tuple(map(spread, blocks)))
        case BlockDropped(block=block) | InputLost(block=block):
            return replace(event, block=spread(block))
    return event


def spread(block: Block) -> Block:
    return replace(block, requests=tuple(each_example(block.requests)))


def outline(commands: list[Command]) -> list[object]:
    """What is done with each example, in order."""
    done: list[object] = []
    for command in commands:
        match command:
            case SendBlock(block=block):
                done.append(replace(command, block=spread(block)))
            case Answer(requests=requests):
                done += [("answer", one) for one in each_example(requests)]
            case Drop(requests=requests, reason=reason):
                done += [(reason, one) for one in each_example(requests)]
            case Forget(server=server, requests=ids) | RecallRequests(server=server, requests=ids):
                done += [(type(command).__name__, server, number) for number in ids]
            case _:
                done.append(command)
    return sorted(done, key=str)


def play(pair: Pair, kind: str, number: int, size: Any, asked: list[int]) -> None:
    if kind == "arrive":
        first = sum(asked)
        asked.append(number)
        deadline_s = min(NEVER_S, pair.now_s + size)
        request = Request(id=first, arrival_s=pair.now_s, deadline_s=deadline_s, count=number)
        pair.tell(RequestsArrived(requests=(request,)))
    elif kind == "cancel":
        open_ = [one for one in range(number, number + size) if one < sum(asked) and one not in pair.ends]
        pair.tell(RequestsCancelled(requests=tuple(open_)))
    elif kind == "die":
        pair.blocks = [(server, block) for server, block in pair.blocks if server != number]
        pair.tell(ServerDown(server=number))
        pair.tell(ServerUp(server=number))
    elif (taken := pair.take(number, size)) is not None:
        server, block = taken
        if kind == "finish":
            choices = block.key.choices
            pair.tell(
                SegmentFinished(
                    server=server, choice=choices[0], ahead=choices[1:], blocks=(block,), size=block.examples
                )
            )
        elif kind == "drop":
            pair.tell(BlockDropped(server=server, block=block, reason=DropReason.EXECUTION_FAILED))
        else:
            pair.tell(InputLost(server=server, block=block))


@settings(max_examples=300, deadline=None)
@given(steps, st.booleans())
def test_a_call_as_one_request_is_decided_as_its_examples_are(
    history: list[tuple[str, int, Any]], early_drop: bool
) -> None:
    pair, asked = Pair(early_drop=early_drop), list[int]()
    for kind, number, size in history:
        play(pair, kind, number, size, asked)
    while pair.blocks:
        play(pair, "finish", 0, 0, asked)
    for _ in range(20):
        pair.tell(ServerUp(server=0))  # a router that waits is asked again
        while pair.blocks:
            play(pair, "finish", 0, 0, asked)
    assert sorted(pair.ends) == list(range(sum(asked))), "each example ends once"
