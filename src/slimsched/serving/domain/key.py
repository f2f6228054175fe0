"""The key k = (segment, requested choice, previous choice): requests of one key can share a batch.

With several models a key also names its model. In the paper a choice is a width.
"""

from functools import lru_cache

from msgspec import Struct

from slimsched.models.spec import ANY, Path, Step


class Key(Struct, frozen=True, cache_hash=True, order=True, array_like=True):
    """What must agree for requests to run as one batch.

    `previous` is the choice of the segment before. It is START in the first segment, and ANY in models for
    which it does not matter. With choices `ahead`, a batch goes on through further segments on the same
    server without asking the router, as long as the server has a free instance for each.
    """

    segment: int
    choice: int
    previous: int
    ahead: Path = ()
    model: int = 0

    def __str__(self) -> str:
        after = "" if self.previous < 0 else f" after {self.previous}"
        onward = "".join(f", then {choice}" for choice in self.ahead)
        model = f"model {self.model}, " if self.model else ""
        return f"{model}segment {self.segment} at choice {self.choice}{after}{onward}"

    @property
    def choices(self) -> Path:
        """The choices of all segments that this key runs."""
        return (self.choice, *self.ahead)

    @property
    def last_segment(self) -> int:
        """The last segment that this key runs."""
        return self.segment + len(self.ahead)

    @property
    def step(self) -> Step:
        """The first step that this key runs."""
        return self.segment, self.choice, self.previous

    @property
    def place(self) -> tuple[int, int, int]:
        """(model, segment, choice) that an instance must be loaded for."""
        return self.model, self.segment, self.choice

    @property
    def legs(self) -> "tuple[Key, ...]":
        """One key per segment, without choices ahead."""
        return _legs(self) if self.ahead else (self,)

    def at(self, choice: int) -> "Key":
        """Return the same key at another choice, without choices ahead."""
        return key_of(self.model, self.segment, choice, self.previous)


MOST_KEYS = 4096
"""How many keys are cached."""


@lru_cache(MOST_KEYS)
def key_of(model: int, segment: int, choice: int, previous: int) -> Key:
    """Return the key of one segment."""
    return Key(segment, choice, previous, (), model)


@lru_cache(MOST_KEYS)
def onward(key: Key, ahead: Path) -> Key:
    """Return this key with the choices `ahead`."""
    return Key(key.segment, key.choice, key.previous, ahead, key.model) if ahead else key


@lru_cache(MOST_KEYS)
def _legs(key: Key) -> tuple[Key, ...]:
    before = (ANY,) * len(key.choices) if key.previous == ANY else (key.previous, *key.choices)
    return tuple(
        key_of(key.model, key.segment + number, choice, before[number])
        for number, choice in enumerate(key.choices)
    )
