"""A bundle: calls of several clients that travel together and are answered apart."""

import numpy as np

from slimsched.serving.domain.request import DropReason
from slimsched.serving.live.calls import Answered, Bundle, DroppedError, Rows, cut, rows_of

LATE = DroppedError(DropReason.DEADLINE_PASSED)


class Clients:
    """Notes what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int, bool]] = []
        self.outputs: list[list[float]] = []

    def answered(self, _: Bundle, start: int, answered: Answered) -> None:
        self.told.append((start, len(answered.outputs[0]), True))
        self.outputs.append(answered.outputs[0][:, 0].tolist())

    def dropped(self, _: Bundle, start: int, end: int, why: DroppedError) -> None:
        self.told.append((start, end - start, False))


def bundle(clients: Clients, count: int = 6) -> Bundle:
    return Bundle(100, [rows_of([bytes(count)], count)], clients)


def outputs(rows: int) -> tuple[np.ndarray, ...]:
    return (np.zeros((rows, 2), np.float32),)


def test_each_part_is_told_as_soon_as_it_is_done() -> None:
    clients = Clients()
    one = bundle(clients)
    one.put_outputs(2, outputs(2))
    one.answered(2, 2)
    assert clients.told == [(2, 2, True)]
    assert not one.is_done
    one.put_outputs(0, outputs(2))
    one.answered(0, 2)
    one.dropped(4, 2, LATE)
    assert clients.told[1:] == [(0, 2, True), (4, 2, False)]
    assert one.is_done


def test_the_rest_fails_at_the_deadline_and_nobody_is_told_twice() -> None:
    clients = Clients()
    one = bundle(clients)
    one.put_outputs(2, outputs(2))
    one.answered(2, 2)
    assert one.fail(LATE)
    assert clients.told[1:] == [(0, 2, False), (4, 2, False)]
    one.put_outputs(0, outputs(2))
    one.answered(0, 2)
    assert len(clients.told) == 3
    assert not one.fail(LATE)


def test_nobody_is_told_after_the_front_is_gone() -> None:
    clients = Clients()
    one = bundle(clients)
    one.give_up()
    one.dropped(0, 6, LATE)
    assert not clients.told


def test_its_receipts_number_requests_from_its_first() -> None:
    assert bundle(Clients()).receipts(0, 6)[0].request == 100


def test_rows_are_cut_across_pieces_wherever_they_lie() -> None:
    pieces = [rows_of([b"aabb", b"12"], 2), Rows(3, [2, 1], offsets=[100, 200])]
    first, second = cut(pieces, 1, 4)
    assert [bytes(raw) for raw in first.raws] == [b"bb", b"2"]
    assert (second.count, second.offsets) == (2, [100, 200])
    (last,) = cut(pieces, 4, 5)
    assert (last.count, last.offsets) == (1, [104, 202])
    assert cut(pieces, 0, 5) == pieces


def test_a_second_answer_may_replace_a_part_of_the_first() -> None:
    clients = Clients()
    one = bundle(clients, count=2)
    one.put_outputs(0, (np.frombuffer(bytes(16), np.float32).reshape(2, 2),))  # bytes of a message
    one.put_outputs(1, (np.ones((1, 2), np.float32),))
    one.answered(0, 2)
    assert clients.told == [(0, 2, True)]


def test_outputs_that_came_otherwise_than_they_are_told_are_put_together() -> None:
    clients = Clients()
    one = bundle(clients)
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    one.put_outputs(0, (rows[:4],))
    one.put_outputs(3, (rows[3:] + 100,))
    one.answered(2, 3)
    one.put_outputs(0, (rows[:2] + 200,))
    one.answered(0, 2)
    one.answered(5, 1)
    assert clients.outputs == [[4, 106, 108], [200, 202], [110]]
