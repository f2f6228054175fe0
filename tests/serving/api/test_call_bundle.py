"""Calls that a front passes on together: what goes to the gateway, and how the answers come apart again."""

import asyncio
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slimsched.serving.api.calls import Call, ModelApi
from slimsched.serving.api.fronts.bundles import PendingCall, bundled
from slimsched.serving.api.limits import REFUSALS, retry_of
from slimsched.serving.domain.bundling import LONGEST_S, MOST_EXAMPLES
from slimsched.serving.domain.request import Terms
from slimsched.serving.live.calls import Receipt
from slimsched.serving.live.memory import open_arena
from slimsched.serving.scenario.files import load_scenario

FACE = ModelApi(load_scenario("laptop").cluster.models[0])
ROW = FACE.spec.inputs[0].row_bytes
LOGITS = FACE.spec.outputs[0].shape[0]


def asked(count: int = 1, arrived_s: float = 0.0, mark: int = 0, **terms: Any) -> PendingCall:
    call = Call(
        id="",
        api=FACE,
        inputs=(bytes([mark]) * (count * ROW),),
        count=count,
        terms=Terms(**terms),
        outputs=(),
    )
    return PendingCall(call, arrived_s, asyncio.new_event_loop().create_future())


def answer(values: list[int]) -> list[memoryview]:
    rows = np.repeat(np.array(values, np.float32), LOGITS).reshape(len(values), LOGITS)
    return [rows.data]


def test_calls_on_the_same_terms_go_together() -> None:
    calls = [asked(2, mark=1), asked(1, deadline_s=1.0), asked(3, mark=2), asked(1, deadline_s=1.0)]
    both, late = bundled(calls, 7)
    message = both.message(None)
    assert (message.number, list(message.counts)) == (7, [2, 3])
    assert bytes(message.inputs[0]) == bytes([1]) * (2 * ROW) + bytes([2]) * (3 * ROW)
    assert (late.number, late.message(None).terms.deadline_s) == (8, 1.0)


def test_a_bundle_ends_where_it_is_full_or_calls_came_much_later() -> None:
    assert len(bundled([asked(MOST_EXAMPLES), asked()], 0)) == 2
    assert len(bundled([asked(arrived_s=0.0), asked(arrived_s=2 * LONGEST_S)], 0)) == 2
    assert len(bundled([asked(arrived_s=0.0), asked(arrived_s=LONGEST_S / 2)], 0)) == 1


def test_small_inputs_that_are_large_together_lie_in_the_arena_until_the_last_call_has_ended() -> None:
    arena = open_arena()
    assert arena is not None
    (one,) = bundled([asked(mark=number) for number in range(16)], 0)
    message = one.message(arena)
    assert not message.inputs
    (piece,) = message.pieces
    assert bytes(arena.view(piece.offsets[0] + 5 * ROW, ROW)) == bytes([5]) * ROW
    assert [one.leave(arena) for _ in range(16)] == [False] * 15 + [True]
    assert arena.in_use_bytes == 0
    arena.close()


def test_calls_that_lie_in_the_arena_already_stay_where_they_are() -> None:
    arena = open_arena()
    assert arena is not None
    laid = [arena.put([memoryview(bytes([mark]) * (8 * ROW))]) for mark in (1, 2)]
    calls = [asked(8), asked(8)]
    for one, views in zip(calls, laid, strict=True):
        assert views is not None
        one.call = Call(id="", api=FACE, inputs=tuple(views), count=8, terms=Terms(), outputs=())
    (bundle,) = bundled(calls, 0)
    pieces = bundle.message(arena).pieces
    assert [bytes(arena.view(one.offsets[0], 1)) for one in pieces] == [b"\1", b"\2"]
    arena.close()


def test_receipts_tell_each_call_its_own_time_and_number() -> None:
    first, second = asked(1, arrived_s=10.0), asked(2, arrived_s=10.0015)
    (bundle,) = bundled([first, second], 0)
    bundle.answered(0, answer([0, 1, 2]), [Receipt(examples=3, latency_s=0.5, request=40)])
    (one,), (other,) = first.future.result().receipts, second.future.result().receipts
    assert (one.examples, one.request, one.latency_s) == (1, 40, 0.5)
    assert (other.examples, other.request, other.latency_s) == (2, 41, pytest.approx(0.4985))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_parts_in_any_order_give_every_call_its_own_rows(counts: list[int], random: Any) -> None:
    calls = [asked(count) for count in counts]
    (bundle,) = bundled(calls, 0)
    total = sum(counts)
    edges = sorted({0, total, *[random.randint(0, total) for _ in range(4)]})
    parts = list(pairwise(edges))
    random.shuffle(parts)
    for start, end in parts:
        receipts = [Receipt(examples=1, queue_s=float(row)) for row in range(start, end)]
        bundle.answered(start, answer(list(range(start, end))), receipts)
    for one in calls:
        found = one.future.result()
        expected = list(range(one.parts.start, one.parts.end))
        assert found.outputs[0][:, 0].tolist() == expected
        assert [receipt.queue_s for receipt in found.receipts] == expected


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_is_the_same_in_another_process(kind: str) -> None:
    arrived = REFUSALS[kind]("not now", 2.0)
    assert (type(arrived).__name__, str(arrived), retry_of(arrived)) == (
        kind,
        "not now",
        (("retry-after", "2"),),
    )
