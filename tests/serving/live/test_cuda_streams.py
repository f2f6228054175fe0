"""Streams that no two slots share."""

from itertools import count

import pytest
from msgspec import Struct

from slimsched.core.config import SlimError
from slimsched.serving.live.cuda import PER_PRIORITY, CudaStreams


class NumberedStream(Struct, frozen=True):
    """A stream as PyTorch has it, known by its handle."""

    cuda_stream: int


def in_turn() -> CudaStreams:
    """Hand out 32 streams of each priority in turn, as PyTorch does."""
    calls = {0: count(), -1: count()}
    return CudaStreams(lambda priority: NumberedStream(next(calls[priority]) % PER_PRIORITY - 100 * priority))


def test_streams_in_use_at_the_same_time_differ() -> None:
    streams = in_turn()
    taken = [streams.take().cuda_stream for _ in range(2 * PER_PRIORITY)]
    assert len(set(taken)) == 2 * PER_PRIORITY


def test_a_stream_that_was_given_back_is_lent_again() -> None:
    streams = in_turn()
    first, second = streams.take(), streams.take()
    streams.give_back(first)
    assert streams.take() == first
    assert streams.take() not in (first, second)


def test_where_there_are_no_more_it_says_what_to_lower() -> None:
    streams = in_turn()
    for _ in range(2 * PER_PRIORITY):
        streams.take()
    with pytest.raises(SlimError, match=r"64 instances are loaded.*lower instance_limit"):
        streams.take()
