"""The key k = (segment, requested width, previous width): requests of one key can share a batch."""

from msgspec import Struct

from slimsched.domain.width import SEGMENTS, WIDTHS


class Key(Struct, frozen=True, cache_hash=True, order=True, array_like=True):
    """What must agree for requests to run as one batch; `previous` is None in the first segment."""

    segment: int
    width: float
    previous: float | None = None

    def __str__(self) -> str:
        came = "" if self.previous is None else f" after {self.previous:g}"
        return f"segment {self.segment} at {self.width:g}{came}"


def _all_keys() -> dict[tuple[int, float, float | None], Key]:
    return {
        (segment, width, previous): Key(segment, width, previous)
        for segment in range(SEGMENTS)
        for previous in (WIDTHS if segment else (None,))
        for width in WIDTHS
    }


KEYS = _all_keys()
"""Every key there is, by (segment, width, previous): 4 + 3 × 16 = 52 of them."""
