"""Which calls a front passes on together, and how long it lets them gather.

The gateway decides once for a bundle. Deadlines in a bundle count from its first call.
"""

MOST_EXAMPLES = 256
"""How many examples a bundle has at most."""

LONGEST_S = 0.002
"""How much later than the first of a bundle a call may have arrived."""

LATER_SHARE, LEAST_LATER_S, MOST_LATER_S = 0.04, 0.002, 0.02
"""The same for calls with known heads: a share of their deadline, within limits."""

HOLD_S, SPARE = 0.02, 0.1
"""New calls may gather for this long at most, and for this share of the time that every server is busy."""


def later_s(deadline_s: float) -> float:
    """Return how much later than the first of its bundle a call with a known head may have arrived."""
    return min(MOST_LATER_S, max(LEAST_LATER_S, LATER_SHARE * deadline_s))


def hold_s(least_backlog_s: float) -> float:
    """Return how long calls with known heads may gather while each server has this much work."""
    return min(HOLD_S, SPARE * least_backlog_s)


def fits(first_s: float, examples: int, arrived_s: float, count: int) -> bool:
    """Say whether a call fits into a bundle that began at `first_s` and has this many examples."""
    return examples + count <= MOST_EXAMPLES and arrived_s <= first_s + LONGEST_S
