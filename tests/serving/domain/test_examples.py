"""Requests of several examples: counted, split and put together again without losing any."""

from hypothesis import given
from hypothesis import strategies as st

from slimsched.serving.domain.request import (
    Request,
    alike,
    count_examples,
    each_example,
    ids_of,
    split_after,
    split_by,
)

counts = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def calls(sizes: list[int]) -> tuple[Request, ...]:
    """Requests of these sizes; between the ids of two calls there is a gap."""
    firsts = [sum(sizes[:at]) + 10 * at for at in range(len(sizes))]
    return tuple(Request(id=first, arrival_s=1.0, count=n) for first, n in zip(firsts, sizes, strict=True))


@given(counts, st.integers(0, 40))
def test_a_split_after_some_examples_keeps_their_order(sizes: list[int], size: int) -> None:
    requests = calls(sizes)
    first, rest = split_after(requests, size)
    assert ids_of(first) + ids_of(rest) == ids_of(requests)
    assert count_examples(first) == min(size, sum(sizes))
    assert all(request.count for request in first + rest)


@given(counts, st.sets(st.integers(0, 90)))
def test_a_split_by_ids_parts_exactly_these(sizes: list[int], ids: set[int]) -> None:
    requests = calls(sizes)
    chosen, others = split_by(requests, ids)
    assert ids_of(chosen) == [number for number in ids_of(requests) if number in ids]
    assert ids_of(others) == [number for number in ids_of(requests) if number not in ids]


@given(counts)
def test_each_example_is_a_request_of_its_own(sizes: list[int]) -> None:
    requests = calls(sizes)
    examples = each_example(requests)
    assert [example.id for example in examples] == ids_of(requests)
    assert {example.count for example in examples} == {1}


def test_requests_that_are_alike_count_all_their_examples() -> None:
    requests = (*calls([3, 2]), Request(id=99, arrival_s=2.0))
    assert [(first.id, count) for first, count in alike(requests)] == [(0, 5), (99, 1)]


def test_a_request_that_is_not_split_stays_the_same_object() -> None:
    requests = calls([3, 2])
    assert split_by(requests, {0, 1, 2}) == (requests[:1], requests[1:])
    assert split_by(requests, {0, 1, 2})[0][0] is requests[0]
