"""Caveats: what a reader must know before trusting the figures of a run."""

from collections.abc import Sequence
from math import sqrt

from slimsched.serving.telemetry.meter import Summary

UNFINISHED_SHARE = 0.01
"""Share of requests under way at the end from which on a short run is worth a word."""
SHORT_S = 20.0
"""A run of this many seconds is long enough to speak for itself."""


def caveats(rows: Sequence[Summary], seeds: int = 1) -> list[str]:
    """Return the sentences that belong under the figures of these runs."""
    return [*_short(rows), *_chance(rows, seeds)]


def _short(rows: Sequence[Summary]) -> list[str]:
    """Say that a short run counts against every router: what is under way at its end is not answered."""
    shares = [row.unfinished / row.arrived for row in rows if row.arrived and row.seconds < SHORT_S]
    if not shares or min(shares) < UNFINISHED_SHARE:
        return []
    return [
        f"This run is too short to judge by: after {rows[0].seconds:g} s at least {100 * min(shares):.1f} % "
        "of the requests were still under way, whatever the router. They count as not answered, also in "
        "'of bound'. Give more --seconds."
    ]


def _chance(rows: Sequence[Summary], seeds: int) -> list[str]:
    """Say why an accuracy is above the bound: fewer answers, or examples that happened to be easy."""
    plain = [row for row in rows if row.completed and not row.sure_bound_accuracy]
    above = [row for row in plain if row.accuracy > row.bound_accuracy + 1e-9]
    if not above:
        return []
    one = max(above, key=lambda row: row.accuracy - row.bound_accuracy)
    if one.accuracy_prior > one.bound_accuracy:
        return [
            f"The accuracy of {one.router} is above the bound because it counts answered requests only. The "
            "bound counts every request; 'of bound' does too."
        ]
    answers = one.completed * seeds
    half = 1.96 * sqrt(max(one.accuracy * (1.0 - one.accuracy), 1e-9) / answers)
    return [
        f"An accuracy above the bound is chance: it is counted over {answers:,} answers, which is good to "
        f"±{100 * half:.1f} points (95 %). By its plans, {one.router} expects "
        f"{100 * one.accuracy_prior:.2f} %."
    ]
