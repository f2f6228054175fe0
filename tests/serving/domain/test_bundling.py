"""Which calls go together, and how long they gather."""

from slimsched.serving.domain.bundling import (
    HOLD_S,
    LATER_SHARE,
    LEAST_LATER_S,
    LONGEST_S,
    MOST_EXAMPLES,
    MOST_LATER_S,
    SPARE,
    fits,
    hold_s,
    later_s,
)


def test_calls_gather_only_while_every_server_is_busy_and_never_for_long() -> None:
    assert hold_s(0.0) == 0.0
    assert hold_s(0.05) == SPARE * 0.05
    assert hold_s(10.0) == HOLD_S


def test_a_call_with_a_known_head_may_come_later_the_more_time_it_has() -> None:
    assert later_s(0.001) == LEAST_LATER_S
    assert later_s(0.2) == LATER_SHARE * 0.2
    assert later_s(60.0) == MOST_LATER_S


def test_a_bundle_takes_what_comes_soon_until_it_is_full() -> None:
    assert fits(1.0, 8, 1.0 + LONGEST_S, 8)
    assert not fits(1.0, 8, 1.0 + 1.1 * LONGEST_S, 8)
    assert fits(1.0, MOST_EXAMPLES - 8, 1.0, 8)
    assert not fits(1.0, MOST_EXAMPLES - 8, 1.0, 9)
