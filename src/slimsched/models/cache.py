"""The user's cache: what was measured about a model on this machine, so that it is measured only once.

    ~/.cache/slim-scheduler/models/NAME-HASH/    one folder for each content of a model
        profiles/DEVICE.json                     how fast this device runs it
        figures.json                             what each step computes and moves

`$XDG_CACHE_HOME/slim-scheduler` or `$SLIM_CACHE` takes the place of `~/.cache/slim-scheduler`. Everything
here may be deleted; it is then measured again.
"""

import os
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from slimsched.core.config import DataError
from slimsched.core.version import __version__
from slimsched.models.package import FIGURES, PROFILES, QUALITY
from slimsched.models.shipped import find_folder
from slimsched.models.spec import DEFAULT_MODEL

MEASURED = (QUALITY, FIGURES, PROFILES)
"""What is measured about a model, and so is no part of its content."""

WHOLE_BYTES, PART_BYTES = 64 * 2**20, 4 * 2**20
"""Of a file above this size only the first, the middle and the last such part are read."""

HASH_LETTERS = 12

_Stamp = tuple[str, int, int]
"""A file of a model: its path below the folder, its size, and when it was changed."""


def cache_root() -> Path:
    """Return the folder of the cache; it need not exist."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "slim-scheduler"
    return Path(os.environ.get("SLIM_CACHE") or default)


def cache_folder(source: str, beside: Path | None = None) -> Path:
    """Return where the cache keeps what was measured about a model; the folder need not exist.

    A model folder with another content has another place. That of the default model goes with the version of
    this package, which its weights come with.
    """
    if source == DEFAULT_MODEL:
        name, content = source, sha256(__version__.encode()).hexdigest()
    else:
        folder = find_folder(source, beside).resolve()
        name, content = folder.name, _content(str(folder), tuple(_stamps(folder)))
    return cache_root() / "models" / f"{name}-{content[:HASH_LETTERS]}"


def write_kept(path: Path, raw: bytes) -> None:
    """Write a file of the cache, all at once: nobody reads half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(raw)
        part.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot keep what was measured ({error}); set SLIM_CACHE to a folder that you may write to"
        ) from None


def _stamps(folder: Path) -> list[_Stamp]:
    """List the files that make up a model's content, in order of their names."""
    stamps: list[_Stamp] = []
    for place, folders, names in os.walk(folder):
        left_out = MEASURED if Path(place) == folder else ()
        folders[:] = [one for one in folders if not one.startswith((".", "__")) and one not in left_out]
        for name in (one for one in names if not one.startswith(".") and one not in left_out):
            path = Path(place, name)
            if path.is_file():
                facts = path.stat()
                stamps.append((str(path.relative_to(folder)), facts.st_size, facts.st_mtime_ns))
    return sorted(stamps)


@lru_cache
def _content(folder: str, stamps: tuple[_Stamp, ...]) -> str:
    """Hash names and bytes; read again only if a file has another size or time."""
    content = sha256()
    for name, size, _ in stamps:
        content.update(f"{name}\0{size}\0".encode())
        starts = range(0, size, PART_BYTES) if size <= WHOLE_BYTES else (0, size // 2, size - PART_BYTES)
        try:
            with Path(folder, name).open("rb") as file:
                for start in starts:
                    file.seek(start)
                    content.update(file.read(PART_BYTES))
        except OSError as error:
            raise DataError(f"cannot read the model in {folder} ({error}); make its files readable") from None
    return content.hexdigest()
