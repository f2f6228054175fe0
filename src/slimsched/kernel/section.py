"""Sections: parts of a TOML file, and other plain values, converted to structs.

Every configuration file is read here. A file that is too large, too deep or no TOML is a `ConfigError`, and
so is a value that the struct's types do not allow. The error names the file, the section, the key, the value
and what is allowed.
"""

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from slimsched.kernel.errors import SHOWN, ConfigError

T = TypeVar("T")

LARGEST_FILE_BYTES = 1 << 24
KINDS = {"float": "a number", "int": "a whole number", "str": "a text"}
LIMITS = {">": "above", ">=": "of at least", "<": "below", "<=": "of at most"}
_RANGE = re.compile(r"Expected `(?P<kind>\w+)` (?P<length>of length )?(?P<sign>[<>]=?) (?P<limit>[-+.e\d]+)")

UNREADABLE = (OSError, EOFError, UnicodeDecodeError, msgspec.DecodeError, RecursionError)
"""What reading and decoding a damaged file can raise."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    return parse_toml(read_text(path), path.name)


def read_text(path: Path) -> str:
    """Read a configuration file as text."""
    try:
        if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
            raise ConfigError(
                f"{path.name} has {size:,} bytes; a configuration has at most {LARGEST_FILE_BYTES:,}"
            )
        return path.read_text(encoding="utf-8")
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
