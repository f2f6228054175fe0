from hypothesis import given
from hypothesis import strategies as st

from cluster import requests
from slimsched.models.spec import START
from slimsched.serving.domain.request import NO_PLAN
from slimsched.serving.gateway.admission import Fifo, QueuePlace

places = st.builds(
    QueuePlace,
    segment=st.integers(0, 3),
    previous=st.sampled_from([START, 0, 3]),
    source=st.integers(-1, 2),
    plan=st.sampled_from([NO_PLAN, 7]),
    model=st.integers(0, 1),
    way=st.just(0),
)


def test_the_head_is_the_oldest_and_takes_all_of_its_place() -> None:
    fifo = Fifo()
    here = QueuePlace(0, START, -1, NO_PLAN, 0, 0)
    there = QueuePlace(1, 1, 2, NO_PLAN, 0, 0)
    fifo.push(here, requests(2))
    fifo.push(there, requests(1, first=10))
    fifo.push(here, requests(2, first=20))
    head = fifo.head()
    assert head is not None
    assert (head[0], head[1].id, head[2]) == (here, 0, 4)
    assert [r.id for r in fifo.take(here, 3)] == [0, 1, 20]
    assert fifo.head()[0] == there  # type: ignore[index]


def test_requests_that_come_while_others_go_keep_their_order() -> None:
    fifo = Fifo()
    here = QueuePlace(0, START, -1, NO_PLAN, 0, 0)
    there = QueuePlace(1, 1, 2, NO_PLAN, 0, 0)
    out: list[int] = []
    fifo.push(here, requests(2))
    fifo.push(here, requests(2, first=2))
    out += [r.id for r in fifo.take(here, 3)]
    fifo.push(here, requests(2, first=4))
    fifo.push(there, requests(1, first=10))
    out += [r.id for r in fifo.take(here, 3)]
    fifo.push(here, requests(1, first=6))
    assert fifo.head() is not None
    assert fifo.head()[0] == there  # type: ignore[index]
    out += [r.id for r in fifo.take(here, 3)]
    assert out == [0, 1, 2, 3, 4, 5, 6]
    assert len(fifo) == 1


@given(st.lists(st.tuples(places, st.integers(1, 5), st.booleans()), max_size=30), st.integers(1, 4))
def test_what_goes_in_comes_out_once_and_in_order_within_a_place(
    pushes: list[tuple[QueuePlace, int, bool]], limit: int
) -> None:
    fifo, total = Fifo(), 0
    expected: dict[QueuePlace, list[int]] = {}
    for place, count, front in pushes:
        members = requests(count, first=total)
        ids = [r.id for r in members]
        total += count
        if front:
            fifo.push(place, members, first=True)
            expected[place] = ids + expected.get(place, [])
        else:
            fifo.push(place, members)
            expected[place] = expected.get(place, []) + ids
    out: dict[QueuePlace, list[int]] = {}
    while (head := fifo.head()) is not None:
        place, first, count = head
        assert first.id == (expected[place][len(out.get(place, []))])
        taken = fifo.take(place, limit)
        assert 1 <= len(taken) <= min(limit, count)
        out.setdefault(place, []).extend(r.id for r in taken)
    assert out == expected
    assert len(fifo) == 0
