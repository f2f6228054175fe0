"""The examples of requests: how many there are, which ids they have, and how to split them."""

from collections.abc import Container, Sequence
from itertools import groupby

from slimsched.serving.domain.request import Request

Requests = tuple[Request, ...]


def count_examples(requests: Sequence[Request]) -> int:
    """Count the examples of these requests."""
    return requests[0].count if len(requests) == 1 else sum([request.count for request in requests])


def ids_of(requests: Sequence[Request]) -> list[int]:
    """List the ids of all examples, in order."""
    ids: list[int] = []
    for request in requests:
        if request.count == 1:
            ids.append(request.id)  # a range takes longer
        else:
            ids.extend(request.ids)
    return ids


def each_example(requests: Sequence[Request]) -> list[Request]:
    """List the examples as requests of their own, in order."""
    return [example for request in requests for example in request.each()]


def split_after(requests: Sequence[Request], size: int) -> tuple[Requests, Requests]:
    """Split requests after a number of examples; a request that goes across is split too."""
    left = size
    for at, request in enumerate(requests):
        if request.count > left:
            before, after = tuple(requests[:at]), tuple(requests[at + 1 :])
            if not left:
                return before, (request, *after)
            return (*before, request.part(0, left)), (request.part(left, request.count), *after)
        left -= request.count
    return tuple(requests), ()


def split_by(requests: Sequence[Request], ids: Container[int]) -> tuple[Requests, Requests]:
    """Split requests into the examples with these ids, and the others."""
    chosen: list[Request] = []
    others: list[Request] = []
    for request in requests:
        if request.count == 1:
            (chosen if request.id in ids else others).append(request)
            continue
        start = 0
        for is_chosen, numbers in groupby([number in ids for number in request.ids]):
            end = start + len(list(numbers))
            (chosen if is_chosen else others).append(
                request if end - start == request.count else request.part(start, end)
            )
            start = end
    return tuple(chosen), tuple(others)
