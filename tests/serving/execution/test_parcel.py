"""A parcel: images of one call that travel together, or part."""

import asyncio

import numpy as np

from slimsched.serving.execution.live.parcel import Parcel


def parcel(count: int = 4) -> Parcel:
    waiter = asyncio.new_event_loop().create_future()
    return Parcel(10, memoryview(bytes(range(12))), count, 0.0, waiter)


def test_images_that_stay_together_share_a_receipt() -> None:
    one = parcel()
    for receipt in one.receipts(0, 4):
        receipt.queue_s += 1.0
    one.put_logits(0, np.ones((4, 2), np.float32))
    one.answered(4)
    found = one.waiter.result()
    assert [receipt.queue_s for receipt in found.receipts] == [1.0]
    assert found.logits.shape == (4, 2)


def test_images_that_part_have_receipts_of_their_own_from_then_on() -> None:
    one = parcel()
    for receipt in one.receipts(0, 4):
        receipt.queue_s = 1.0
    for receipt in one.receipts(1, 3):
        receipt.queue_s += 1.0
    for start in (0, 2):
        one.put_logits(start, np.full((2, 2), start, np.float32))
        one.answered(2)
    found = one.waiter.result()
    assert [receipt.queue_s for receipt in found.receipts] == [1.0, 2.0, 2.0, 1.0]
    assert found.logits[:, 0].tolist() == [0, 0, 2, 2]


def test_it_knows_its_requests_and_their_bytes() -> None:
    one = parcel()
    assert list(one.requests) == [10, 11, 12, 13]
    assert bytes(one.images(1, 3)) == bytes(range(3, 9))


def test_nobody_is_told_before_the_last_image_is_done() -> None:
    one = parcel()
    one.put_logits(0, np.ones((3, 2), np.float32))
    one.answered(3)
    assert not one.waiter.done()
