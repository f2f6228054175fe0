"""Fallback answers: woken once for the first answer that must go, and nothing is remembered for ever."""

from msgspec.structs import replace

from cluster import path, requests, small_cluster
from slimsched.core.clock import WakeAt
from slimsched.serving.domain.request import Trail
from slimsched.serving.gateway.gateway import MOST, FallbackAnswers, SentBlock, SentBlocks
from slimsched.serving.gateway.observation import Observation, ServerSpeeds

CLUSTER = small_cluster((10.0,))
TRIED = Trail(tried=(path(0.25, 0.25, 0.25, 0.25),))


def going_on(count: int, first: int, deadline_s: float) -> tuple[object, ...]:
    return tuple(replace(one, trail=TRIED) for one in requests(count, first=first, deadline_s=deadline_s))


def sent_blocks() -> SentBlocks:
    seen = Observation(1, 1)
    return SentBlocks(seen, ServerSpeeds(CLUSTER, seen))


def test_a_wake_is_asked_for_the_first_only_and_for_the_next_when_that_is_kept() -> None:
    sent = sent_blocks()
    fallbacks = FallbackAnswers(sent)
    for number, deadline_s in enumerate((2.0, 3.0, 1.0)):
        ones = going_on(1, number, deadline_s)
        sent.add(number, SentBlock(0, ones, 1, 0.1, 0))  # type: ignore[arg-type]
        wakes = fallbacks.make(ones, 0.0)  # type: ignore[arg-type]
        assert wakes == ([] if number == 1 else [WakeAt(at_s=0.96 * deadline_s)])
    assert not fallbacks.are_due(0.9)
    assert fallbacks.are_due(0.96)
    commands, done = fallbacks.keep(0.96)
    assert [one.id for one in done] == [2]
    assert commands[-1] == WakeAt(at_s=0.96 * 2.0)
    assert fallbacks.keep(10.0)[1] != []
    assert not fallbacks.are_due(11.0)


def test_what_was_answered_long_before_a_far_deadline_is_forgotten() -> None:
    sent = sent_blocks()
    fallbacks = FallbackAnswers(sent)
    last = going_on(1, 10**6, 3600.0)
    sent.add(0, SentBlock(0, last, 1, 0.1, 0))  # type: ignore[arg-type]
    for first in range(0, 5 * MOST, 64):
        fallbacks.make(going_on(64, first, 3600.0), 0.0)  # type: ignore[arg-type]
    fallbacks.make(last, 0.0)  # type: ignore[arg-type]
    assert len(fallbacks._heap) < 3 * MOST
    assert [one.id for one in fallbacks.keep(3500.0)[1]] == [10**6]
