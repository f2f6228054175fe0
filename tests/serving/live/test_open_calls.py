"""A call in a bundle of its own: its examples travel together, or part."""

import asyncio
from collections.abc import Sequence

import numpy as np

from slimsched.serving.domain.request import DropReason, Request
from slimsched.serving.live.calls import Bundle, OpenCall, rows_of
from slimsched.serving.live.cluster import OpenBundles


def bundle_of(first: int, inputs: Sequence[bytes], count: int) -> OpenCall:
    """Return a call in a bundle of its own."""
    call = OpenCall(count, asyncio.new_event_loop().create_future())
    call.bundle = Bundle(first, [rows_of(inputs, count)], call)
    return call


def open_call(count: int = 4) -> OpenCall:
    return bundle_of(10, [bytes(range(12)), b"abcd"], count)


def test_examples_that_stay_together_share_a_receipt() -> None:
    one = open_call()
    for receipt in one.bundle.receipts(0, 4):
        receipt.queue_s += 1.0
    one.bundle.put_outputs(0, (np.ones((4, 2), np.float32),))
    one.bundle.answered(0, 4)
    found = one.future.result()
    assert [receipt.queue_s for receipt in found.receipts] == [1.0]
    assert found.outputs[0].shape == (4, 2)


def test_examples_that_part_have_receipts_of_their_own_from_then_on() -> None:
    one = open_call()
    for receipt in one.bundle.receipts(0, 4):
        receipt.queue_s = 1.0
    for receipt in one.bundle.receipts(1, 3):
        receipt.queue_s += 1.0
    for start in (0, 2):
        one.bundle.put_outputs(start, (np.full((2, 2), start, np.float32), np.full((2, 3, 1), start)))
        one.bundle.answered(start, 2)
    found = one.future.result()
    queue_s = [one.queue_s for one in found.receipts for _ in range(one.examples)]
    assert queue_s == [1.0, 2.0, 2.0, 1.0]
    logits, marks = found.outputs
    assert logits[:, 0].tolist() == marks[:, 2, 0].tolist() == [0, 0, 2, 2]
    assert marks.shape == (4, 3, 1)


def test_an_answer_of_a_wider_plan_replaces_one_of_a_message_that_others_share() -> None:
    one, message = open_call(), np.zeros((6, 2), np.float32)
    message.flags.writeable = False
    one.bundle.put_outputs(0, (message[1:5],))
    one.bundle.put_outputs(2, (np.full((1, 2), 7, np.float32),))
    one.bundle.answered(0, 4)
    assert one.future.result().outputs[0][:, 0].tolist() == [0, 0, 7, 0]
    assert not message.any()


def test_examples_that_went_different_ways_have_receipts_of_their_own() -> None:
    one = open_call()
    for first, count, way in ((10, 1, (0, 1)), (11, 1, (1, 1)), (12, 2, (0, 1))):
        one.bundle.went(Request(id=first, arrival_s=1.0, path=way, count=count), 2.0, "modelled")
    one.bundle.put_outputs(0, (np.ones((4, 2), np.float32),))
    one.bundle.answered(0, 4)
    found = [(receipt.path, receipt.examples) for receipt in one.future.result().receipts]
    assert found == [((0, 1), 1), ((1, 1), 1), ((0, 1), 2)]


def test_it_knows_its_requests_and_their_bytes() -> None:
    one = open_call()
    assert list(one.bundle.requests) == [10, 11, 12, 13]
    assert [bytes(raw) for raw in one.bundle.rows(1, 3)[0].raws] == [bytes(range(3, 9)), b"bc"]
    assert [bytes(raw) for raw in one.bundle.rows(0, 4)[0].raws] == [bytes(range(12)), b"abcd"]


def test_nobody_is_told_before_the_last_example_is_done() -> None:
    one = open_call()
    one.bundle.put_outputs(0, (np.ones((3, 2), np.float32),))
    one.bundle.answered(0, 3)
    assert not one.bundle.is_done


def all_open(*calls: OpenCall) -> OpenBundles:
    bundles = OpenBundles(["first"])
    for one in calls:
        bundles.add(one.bundle)
    return bundles


def test_neighbours_of_one_call_make_a_stretch() -> None:
    one, other = open_call(), bundle_of(14, [b"ab"], 2)
    requests = [Request(id=11, arrival_s=0.0), Request(id=12, arrival_s=0.0, count=2)]
    requests += [Request(id=14, arrival_s=0.0, count=2), Request(id=10, arrival_s=0.0)]
    found = all_open(one, other).stretches(requests)
    assert list(found) == [(0, one.bundle, 1, 4), (3, other.bundle, 0, 2), (5, one.bundle, 0, 1)]


def test_examples_that_have_left_belong_to_no_stretch() -> None:
    one = open_call()
    calls = all_open(one)
    calls.dropped([Request(id=11, arrival_s=0.0, count=2)], DropReason.CANCELLED, "")
    requests = [Request(id=10, arrival_s=0.0, count=4)]
    assert list(calls.stretches(requests)) == [(0, one.bundle, 0, 1), (3, one.bundle, 3, 4)]
    assert len(calls) == 2
    assert calls.still_open(range(10, 14)) == (10, 13)


def test_calls_that_have_left_or_never_came_belong_to_no_stretch() -> None:
    one, other = open_call(), bundle_of(20, [b"ab"], 2)
    calls = all_open(one, other)
    requests = [Request(id=8, arrival_s=0.0, count=20)]
    assert list(calls.stretches(requests)) == [(2, one.bundle, 0, 4), (12, other.bundle, 0, 2)]
    calls.dropped([Request(id=10, arrival_s=0.0, count=4)], DropReason.CANCELLED, "")
    assert list(calls.stretches(requests)) == [(12, other.bundle, 0, 2)]
    assert list(calls.stretches([Request(id=11, arrival_s=0.0)])) == []
    assert calls.bundles == (other.bundle,)
