"""The key k = (segment, requested width, previous width): requests of one key can share a batch."""

from functools import lru_cache

from msgspec import Struct

from slimsched.models.width import SEGMENTS, WIDTHS


class Key(Struct, frozen=True, cache_hash=True, order=True, array_like=True):
    """What must agree for requests to run as one batch; `previous` is None in the first segment.

    With widths `ahead` a batch goes on through as many further segments on the same server, without asking
    anybody in between, as far as the server has an instance free for each.
    """

    segment: int
    width: float
    previous: float | None = None
    ahead: tuple[float, ...] = ()

    def __str__(self) -> str:
        came = "" if self.previous is None else f" after {self.previous:g}"
        onward = "".join(f", then {width:g}" for width in self.ahead)
        return f"segment {self.segment} at {self.width:g}{came}{onward}"

    @property
    def widths(self) -> tuple[float, ...]:
        """The width of every segment it runs."""
        return (self.width, *self.ahead)

    @property
    def last_segment(self) -> int:
        """The last segment it runs."""
        return self.segment + len(self.ahead)

    @property
    def legs(self) -> "tuple[Key, ...]":
        """Its segments one by one, each a key that goes no further."""
        return _legs(self) if self.ahead else (self,)


def _all_keys() -> dict[tuple[int, float, float | None], Key]:
    return {
        (segment, width, previous): Key(segment, width, previous)
        for segment in range(SEGMENTS)
        for previous in (WIDTHS if segment else (None,))
        for width in WIDTHS
    }


KEYS = _all_keys()
"""Every key of one segment, by (segment, width, previous): 4 + 3 × 16 = 52 of them."""

MOST_COURSES = 1024
"""How many keys that go on are remembered; 256 of them run the whole network."""


@lru_cache(MOST_COURSES)
def onward(key: Key, ahead: tuple[float, ...]) -> Key:
    """The key that begins as this one does and goes on at the widths `ahead`."""
    return Key(key.segment, key.width, key.previous, ahead) if ahead else key


@lru_cache(MOST_COURSES)
def _legs(key: Key) -> tuple[Key, ...]:
    before = (key.previous, *key.widths)
    return tuple(KEYS[key.segment + n, width, before[n]] for n, width in enumerate(key.widths))
