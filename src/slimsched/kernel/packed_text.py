"""Texts on disk that may be packed: plain, .gz or .bz2, whole and of a bounded size."""

import bz2
import gzip
from pathlib import Path
from typing import BinaryIO, cast

from slimsched.kernel.errors import DataError

LARGEST_BYTES = 1 << 30
"""Bytes of a text after unpacking: more would not fit beside the run that it is for."""


def read_packed_text(path: Path) -> str:
    """Read a text; a packed file that was cut off, or that unpacks to too much, is refused."""
    try:
        with _open(path) as file:
            raw = file.read(LARGEST_BYTES + 1)
        if len(raw) > LARGEST_BYTES:
            raise DataError(f"{path} holds more than {LARGEST_BYTES:,} bytes; give a part of it")
        return raw.decode()
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text, .gz or .bz2: {error}; copy it again") from None


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    return cast(BinaryIO, bz2.open(path)) if path.suffix == ".bz2" else path.open("rb")
