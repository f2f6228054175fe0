"""Slurm's lists of machines: `n[1-4,07],gpu-a`, with leading zeros and several brackets in a name."""

import re
from collections.abc import Iterator
from itertools import product

from slimsched.jobs.domain.topology import MOST_MACHINES
from slimsched.kernel.errors import DataError

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")


def host_names(text: str) -> tuple[str, ...]:
    """Return the machines that a list names, in its order."""
    names: list[str] = []
    for entry in _ENTRY.findall(text):
        pieces = [
            tuple(_numbers(inner, text)) if inner else (plain,) for inner, plain in _PIECE.findall(entry)
        ]
        size = 1
        for piece in pieces:
            size *= len(piece)
        if size + len(names) > MOST_MACHINES:
            raise DataError(f"'{text[:60]}' names more than {MOST_MACHINES:,} machines; give fewer")
        names += ["".join(parts) for parts in product(*pieces)]
    return tuple(names)


def _numbers(inner: str, text: str) -> Iterator[str]:
    """Yield the numbers of `1-4,07` with their leading zeros."""
    for part in inner.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or int(last) - int(first) >= MOST_MACHINES:
            raise DataError(f"'{text[:60]}' is no list of machines; write it as n[1-4,7]")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
