"""The widths at which the segments of a slimmable network can run, and all tuples of four. No torch."""

from functools import lru_cache
from itertools import product

from slimsched.core.config import Count, WidthError

SEGMENTS = 4
PerSegment = tuple[Count, Count, Count, Count]
"""One count for each segment."""
WIDTHS: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

WIDTH_TUPLES: tuple[tuple[float, ...], ...] = tuple(product(WIDTHS, repeat=SEGMENTS))
"""All 256 width tuples; the first segment varies slowest. Tables by tuple use this order."""


def check_width(width: float) -> None:
    """Raise WidthError if no segment can run at this width."""
    if width not in WIDTHS:
        known = ", ".join(f"{w:g}" for w in WIDTHS)
        raise WidthError(
            f"width {width:g} is not available: this model was trained at {known}; ask for one of these"
        )


def check_widths(widths: tuple[float, ...]) -> None:
    """Raise WidthError unless these are widths that the four segments can run at."""
    if len(widths) != SEGMENTS:
        raise WidthError(
            f"{len(widths)} widths given, but the network has {SEGMENTS} segments; give one width a segment"
        )
    for width in widths:
        check_width(width)


@lru_cache(maxsize=1024)
def format_widths(widths: tuple[float, ...]) -> str:
    """Write a width tuple the way a spec writes that plan: '0.25,0.5,0.75,1.0'."""
    return ",".join(str(width) for width in widths)
