"""A parcel: examples of one call that travel together, or part."""

import asyncio

import numpy as np

from slimsched.serving.domain.request import DropReason, Request
from slimsched.serving.live.calls import Parcel, rows_of
from slimsched.serving.live.cluster import OpenCalls


def parcel(count: int = 4) -> Parcel:
    waiter = asyncio.new_event_loop().create_future()
    return Parcel(10, rows_of([bytes(range(12)), b"abcd"], count), 0.0, waiter)


def test_examples_that_stay_together_share_a_receipt() -> None:
    one = parcel()
    for receipt in one.receipts(0, 4):
        receipt.queue_s += 1.0
    one.put_outputs(0, (np.ones((4, 2), np.float32),))
    one.answered(0, 4)
    found = one.future.result()
    assert [receipt.queue_s for receipt in found.receipts] == [1.0]
    assert found.outputs[0].shape == (4, 2)


def test_examples_that_part_have_receipts_of_their_own_from_then_on() -> None:
    one = parcel()
    for receipt in one.receipts(0, 4):
        receipt.queue_s = 1.0
    for receipt in one.receipts(1, 3):
        receipt.queue_s += 1.0
    for start in (0, 2):
        one.put_outputs(start, (np.full((2, 2), start, np.float32), np.full((2, 3, 1), start)))
        one.answered(start, 2)
    found = one.future.result()
    assert [(one.queue_s, one.examples) for one in found.receipts] == [(1.0, 1), (2.0, 2), (1.0, 1)]
    logits, marks = found.outputs
    assert logits[:, 0].tolist() == marks[:, 2, 0].tolist() == [0, 0, 2, 2]
    assert marks.shape == (4, 3, 1)


def test_an_answer_of_a_wider_plan_replaces_one_of_a_message_that_others_share() -> None:
    one, message = parcel(), np.zeros((6, 2), np.float32)
    message.flags.writeable = False
    one.put_outputs(0, (message[1:5],))
    one.put_outputs(2, (np.full((1, 2), 7, np.float32),))
    one.answered(0, 4)
    assert one.future.result().outputs[0][:, 0].tolist() == [0, 0, 7, 0]
    assert not message.any()


def test_examples_that_went_different_ways_have_receipts_of_their_own() -> None:
    one = parcel()
    for first, count, way in ((10, 1, (0, 1)), (11, 1, (1, 1)), (12, 2, (0, 1))):
        one.went(Request(id=first, arrival_s=1.0, path=way, count=count), 2.0, "modelled")
    one.put_outputs(0, (np.ones((4, 2), np.float32),))
    one.answered(0, 4)
    found = [(receipt.path, receipt.examples) for receipt in one.future.result().receipts]
    assert found == [((0, 1), 1), ((1, 1), 1), ((0, 1), 2)]


def test_it_knows_its_requests_and_their_bytes() -> None:
    one = parcel()
    assert list(one.requests) == [10, 11, 12, 13]
    assert [bytes(raw) for raw in one.rows(1, 3)[0].raws] == [bytes(range(3, 9)), b"bc"]
    assert [bytes(raw) for raw in one.rows(0, 4)[0].raws] == [bytes(range(12)), b"abcd"]


def test_nobody_is_told_before_the_last_example_is_done() -> None:
    one = parcel()
    one.put_outputs(0, (np.ones((3, 2), np.float32),))
    one.answered(0, 3)
    assert not one.is_done


def open_calls(*parcels: Parcel) -> OpenCalls:
    calls = OpenCalls(["first"])
    for one in parcels:
        calls.add(one)
    return calls


def test_neighbours_of_one_call_make_a_stretch() -> None:
    one, other = parcel(), Parcel(14, rows_of([b"ab"], 2), 0.0, parcel().future)
    requests = [Request(id=11, arrival_s=0.0), Request(id=12, arrival_s=0.0, count=2)]
    requests += [Request(id=14, arrival_s=0.0, count=2), Request(id=10, arrival_s=0.0)]
    found = open_calls(one, other).stretches(requests)
    assert list(found) == [(0, one, 1, 4), (3, other, 0, 2), (5, one, 0, 1)]


def test_examples_that_have_left_belong_to_no_stretch() -> None:
    one = parcel()
    calls = open_calls(one)
    calls.dropped([Request(id=11, arrival_s=0.0, count=2)], DropReason.CANCELLED, "")
    requests = [Request(id=10, arrival_s=0.0, count=4)]
    assert list(calls.stretches(requests)) == [(0, one, 0, 1), (3, one, 3, 4)]
    assert len(calls) == 2
    assert calls.still_open(range(10, 14)) == (10, 13)


def test_calls_that_have_left_or_never_came_belong_to_no_stretch() -> None:
    one, other = parcel(), Parcel(20, rows_of([b"ab"], 2), 0.0, parcel().future)
    calls = open_calls(one, other)
    requests = [Request(id=8, arrival_s=0.0, count=20)]
    assert list(calls.stretches(requests)) == [(2, one, 0, 4), (12, other, 0, 2)]
    calls.dropped([Request(id=10, arrival_s=0.0, count=4)], DropReason.CANCELLED, "")
    assert list(calls.stretches(requests)) == [(12, other, 0, 2)]
    assert list(calls.stretches([Request(id=11, arrival_s=0.0)])) == []
    assert calls.calls == (other,)
