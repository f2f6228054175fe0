"""Splits an inference request into its head and the raw tensors that follow it, without parsing either.

Clients write the fields of a message in the order of their numbers, so raw tensors are at the end. A client
sends the same head again and again: it can be parsed once. Whatever looks different is left to the parser.
"""

LONGEST_HEAD_BYTES = 1024
MOST_TENSORS = 64

_HEAD_TAGS = frozenset((field << 3) | 2 for field in range(1, 7))
_RAW_TAG = (7 << 3) | 2


def split(raw: bytes) -> tuple[bytes, list[memoryview]] | None:
    """Return the head and the raw tensors of a ModelInferRequest; None if it must be parsed as a whole."""
    if (found := places(raw)) is None:
        return None
    end, tensors = found
    view = memoryview(raw)
    return raw[:end], [view[begin:at] for begin, at in tensors]


def places(raw: bytes) -> tuple[int, list[tuple[int, int]]] | None:
    """Return where the head ends, and where each raw tensor begins and ends, as `split` does."""
    size = len(raw)
    at = 0
    while at < size and raw[at] in _HEAD_TAGS:
        at = _skip(raw, at + 1)[1]
        if at > LONGEST_HEAD_BYTES:
            return None
    end = at
    tensors: list[tuple[int, int]] = []
    while at < size and raw[at] == _RAW_TAG and len(tensors) < MOST_TENSORS:
        begin, at = _skip(raw, at + 1)
        tensors.append((begin, at))
    return (end, tensors) if at == size and tensors else None


def _skip(raw: bytes, at: int) -> tuple[int, int]:
    """Read the length of a field at this place; return where the field begins and ends."""
    length = shift = 0
    for place in range(at, min(at + 4, len(raw))):
        byte = raw[place]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + 1, place + 1 + length
        shift += 7
    return len(raw), len(raw) + 1  # no length, or too large a one: beyond the end
