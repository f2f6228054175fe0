"""Values from outside, checked at the edge: errors, numbers with ranges, sections of TOML files, small files.

Every error says what happened, with which value, and what to do. Every number that a file or an option may
hold has a type with a range, so that nothing behind this line needs to check again.
"""

import bz2
import gzip
import os
import re
import reprlib
import stat
import tomllib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

SHOWN = 60
"""Characters of a wrong name that an error shows."""


class SlimError(Exception):
    """An error that the user can fix; the command line prints it as one line and exits with 2."""


class ConfigError(SlimError):
    """A configuration is not valid."""


class DataError(SlimError):
    """A data file is missing, damaged, or of the wrong kind."""


def check(holds: bool, text: str, *values: object) -> None:
    """Raise an error with these values unless a condition holds that a machine itself must keep."""
    if not holds:
        raise SlimError(f"inconsistent state: {text.format(*map(reprlib.repr, values))}")


class WidthError(SlimError):
    """A width that the model was not trained at."""


class UnknownNameError(SlimError):
    """A name that is not in its table."""

    def __init__(self, kind: str, name: str, known: "list[str] | tuple[str, ...]") -> None:
        shown = name if len(name) <= SHOWN else f"{name[:SHOWN]}…"
        super().__init__(f"unknown {kind} '{shown}'; known: {', '.join(known)}")
        self._parts = kind, name, known

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        """Let the error travel from a worker process."""
        return type(self), self._parts


LARGEST_BYTES = 1 << 30
"""Bytes of a text after unpacking: more would not fit beside the run that it is for."""


def read_packed_text(path: Path) -> str:
    """Read a text, plain, .gz or .bz2; a file that was cut off, or unpacks to too much, is refused."""
    try:
        packed: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
        with packed.get(path.suffix, open)(path, "rb") as file:
            raw: bytes = file.read(LARGEST_BYTES + 1)
        if len(raw) > LARGEST_BYTES:
            raise DataError(f"{path} holds more than {LARGEST_BYTES:,} bytes; give a part of it")
        return raw.decode()
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text, .gz or .bz2: {error}; copy it again") from None


def read_seconds(text: str) -> float:
    """Read a time: a number of seconds, or a date and time, with any number of digits after the second."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()).timestamp()


# -- Files and folders of this user alone, in places where everybody may put something, such as /tmp.
#
# Anyone can leave anything there under any name: a pipe that holds up whoever opens it, a link to a file that
# is not theirs, a folder whose name is a pattern. So nothing here follows links, waits, or takes a name from
# the disk for a pattern, and what was opened is asked whose it is before it is used.

_OPEN = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class NotPrivateError(PermissionError):
    """What has this name is not a file or folder of this user alone."""


def open_private_folder(path: Path) -> int:
    """Open a folder that this user owns and that nobody else may enter."""
    return _checked(os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN), path, stat.S_ISDIR)


def open_private_file(path: Path) -> int:
    """Open a regular file, to read it, that this user owns and that nobody else may open."""
    return _checked(os.open(path, _OPEN), path, stat.S_ISREG)


def open_file_inside(folder: int, name: str, flags: int) -> int:
    """Open a regular file of this user in a private folder, which keeps others out whatever its mode is."""
    return _checked(os.open(name, flags | _OPEN, dir_fd=folder), name, stat.S_ISREG, others=0)


def new_private_file(path: Path) -> int:
    """Make and open a file that only this user may open; raises FileExistsError if the name is taken."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)


def remove_files(folder: Path, beginning: str) -> None:
    """Remove the regular files of this user whose names begin so."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(beginning):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                        os.unlink(entry.path)


def _checked(
    file: int, path: Path | str, is_right_kind: Callable[[int], bool], *, others: int = _OTHERS
) -> int:
    """Return an open file of this kind that is this user's and closed to others; else close it and raise."""
    status = os.fstat(file)
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & others
    if is_ours and is_right_kind(status.st_mode):
        return file
    os.close(file)
    raise NotPrivateError(f"{path} is not this user's alone; nothing in it is touched")


def read_small_file(path: Path, limit_bytes: int) -> bytes:
    """Read a small file that the user names; refuse devices and pipes, which may never end.

    Raises OSError as `Path.read_bytes` does where the file is missing or cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path} is not a regular file; name one")
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ConfigError(f"{path} is larger than {limit_bytes} bytes; is it the right file?")
    return content


# -- The numbers that files and options may hold: types that are finite and have a range.
#
# A struct that is read from a file, and a struct of options, takes its numbers from here:
#
#     class Link(Struct, frozen=True, kw_only=True):
#         bandwidth_bytes_per_s: PositiveAmount
#         latency_s: Seconds
#
# The conversion refuses what is out of range, NaN and infinity included, so no code behind it has to check
# again. A test walks all such structs and fails on a number without a range.

LONGEST_S = 1e9
"""About 30 years: no time in a file or an option is longer."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A time that may be 0."""
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
RunSeconds = Annotated[float, Meta(gt=0, le=1e7)]
"""The length of a run: at most about four months."""
Interval = Annotated[float, Meta(ge=1e-4, le=LONGEST_S)]
"""The time between two steps of something that repeats: a run of hours must not take billions of them."""
PhaseSeconds = Annotated[float, Meta(ge=1e-3, le=LONGEST_S)]
"""The mean length of a phase of the load."""
PollSeconds = Annotated[float, Meta(ge=0.05, le=LONGEST_S)]
"""The time between two looks at a real cluster."""
Deadline = Annotated[float, Meta(gt=0, le=1e18)]
"""Seconds until an answer is due; 1e18 stands for never."""
Milliseconds = Annotated[float, Meta(gt=0, le=1e12)]

Rate = Annotated[float, Meta(gt=0, le=1e9)]
"""Requests per second."""
FailureRate = Annotated[float, Meta(ge=0, le=24)]
"""Failures per machine and day; a repair takes an hour, so there cannot be more."""
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
PartialShare = Annotated[float, Meta(ge=0, lt=1)]
"""A share that always leaves something."""
AccuracyFloor = Annotated[float, Meta(ge=0, le=100)]
"""A percentage, or a share."""
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
"""How many times as much."""
Amount = Annotated[float, Meta(ge=0, le=1e18)]
"""Watts, bytes per second, operations per second, and the like; may be 0."""
PositiveAmount = Annotated[float, Meta(gt=0, le=1e18)]
Finite = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""A number that may be negative."""
LogMegabytes = Annotated[float, Meta(gt=0, le=1e9)]

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000)]
WorkerCount = Annotated[int, Meta(ge=0, le=1024)]
"""Processes to use; 0 stands for one per core."""
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
Repeats = Annotated[int, Meta(ge=2, le=1_000_000)]
"""Timed runs: a spread needs two."""
Index = Annotated[int, Meta(ge=-2, le=1_000_000)]
"""A place in a list; a negative one stands for none."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
"""A whole number up to where a float is still exact."""
Bytes = Whole
Identity = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The number of a request or a block; gateways that share servers count from far apart."""
Percentage = Annotated[int, Meta(ge=1, le=100)]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
FrontCount = Annotated[int, Meta(ge=0, le=64)]
"""Front processes of a server."""
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Name = Annotated[str, Meta(min_length=1, max_length=200)]
"""A name that may become part of a path: shorter than the limits of file systems."""


def describe_range(annotation: Any) -> str:
    """Say which values a type of this file allows, in words; empty for a type without a range."""
    bounds = [one for one in _meta(annotation) if one.ge is not None or one.gt is not None]
    if not bounds:
        return ""
    low = f"above {bounds[0].gt:g} and up" if bounds[0].gt is not None else f"from {bounds[0].ge:g}"
    return f"{low} to {bounds[0].le:g}" if bounds[0].le is not None else f"{low} to below {bounds[0].lt:g}"


def _meta(annotation: Any) -> list[Meta]:
    own = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Meta)]
    return own + [meta for one in get_args(annotation) if get_origin(annotation) for meta in _meta(one)]


T = TypeVar("T")

LARGEST_FILE_BYTES = 1 << 24
KINDS = {"float": "a number", "int": "a whole number", "str": "a text"}
LIMITS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}
_RANGE = re.compile(r"Expected `(?P<kind>\w+)` (?P<length>of length )?(?P<sign>[<>]=?) (?P<limit>[-+.e\d]+)")

UNREADABLE = (OSError, EOFError, UnicodeDecodeError, msgspec.DecodeError, RecursionError)
"""What reading and decoding a damaged file can raise."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
            raise ConfigError(
                f"{path.name} has {size:,} bytes; a configuration has at most {LARGEST_FILE_BYTES:,}"
            )
        return parse_toml(path.read_text(encoding="utf-8"), path.name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name} is not valid TOML: {error}; write it in UTF-8") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Read text as TOML."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a syntax error, or a number with thousands of digits
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name} is not valid TOML: its tables are nested too deeply") from None


def read_section(raw: dict[str, Any], kind: type[T], file: str, section: str = "") -> T:
    """Convert one section to a struct, after checking its keys against the struct's fields."""
    where = f"{file} [{section}]" if section else file
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    for key in raw:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key '{_short(key)}'; known keys: {', '.join(fields)}")
    for name, field in fields.items():
        if field.required and name not in raw:
            raise ConfigError(f"{where}: key '{name}' is missing; it has no default")
    return convert(raw, kind, where)


def convert(raw: Any, kind: type[T], where: str, *, strict: bool = True) -> T:
    """Convert plain values to a type; refuse what the type does not allow.

    Unless `strict`, a text that holds a number counts as that number.
    """
    try:
        return msgspec.convert(raw, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_explain(str(error), raw)}") from None
    except RecursionError:
        raise ConfigError(f"{where}: the values are nested too deeply") from None


def _explain(error: str, raw: Any) -> str:
    """Say in our words what msgspec found: the key, its value, and what to give instead."""
    message, _, at = error.partition(" - at `$")
    at = at.removesuffix("`").removeprefix(".")
    if match := _RANGE.fullmatch(message):
        kind = KINDS.get(match["kind"], match["kind"])
        size = f"{match['limit']} characters" if match["length"] else f"{float(match['limit']):g}"
        return f"{at or 'it'} is {_value(raw, at)}; give {kind} {LIMITS[match['sign']]} {size}"
    key = f" for key '{at}'" if at else ""
    return f"{message[:1].lower()}{message[1:]}{key}"


def _value(raw: Any, path: str) -> str:
    """Look up the value at a path such as `shape[...]` or `link.latency_s`, as text."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        try:
            if number == "...":
                return f"one of {_short(str(list(raw.values())))}"
            raw = raw[name] if name else raw[int(number)]
        except (LookupError, TypeError, AttributeError):
            return "of another form"
    if isinstance(raw, float):
        return f"{raw:g}"
    return "too large" if isinstance(raw, int) and abs(raw) > 1 << 64 else _short(str(raw))


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
