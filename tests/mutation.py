"""Values that nobody expects, and trees and texts that are changed at random."""

import json
from datetime import date
from random import Random
from typing import Any

VALUES: list[Any] = [
    *map(
        float,
        [
            "nan",
            "inf",
            "-inf",
            "-1",
            "0",
            "-0.0",
            "1e300",
            "-1e300",
            "1e-300",
            "5e-324",
            "1e9",
            "0.5",
            "2",
            "1000",
        ],
    ),
    *(-(10**30), -1, 0, 1, 2, 1000, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400, True, False),
    *("", " ", "nan", "0.3", "widest", "a" * 5000, "../../etc/passwd", "/dev/full", "/", "\x00", "ä\n[x]"),
    *("server-0", [], [0.3], ["0.3"], [[[]]], {}, {"a": 1}, {"latency_s": -1}, [{}], date(2026, 1, 1)),
]
"""What is put in place of a value in a file."""
WORDS = [
    *[
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "-0",
        "1e300",
        "1e-300",
        "5e-324",
        "1e309",
        "0x10",
        "1_0",
        ",",
        ":",
        "=",
        "[",
        "]",
        "²",
        "١",
        "true",
        "None",
    ],
    *["../..", "/", "/tmp", "/dev/full", "/dev/null/x", "/etc/passwd", "~", "*", "-", "--", "0.5", "1", "2"],
    *("", " ", "9" * 30, "9" * 5000, "a" * 5000, "\x00", "\ud800"),
]
"""What is given as the value of an option."""


def toml_text(table: Any) -> str:
    """Write a dictionary as TOML, with inline tables inside; anything else as what is no TOML."""
    if not isinstance(table, dict):
        return "x"
    return "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case str():
            return json.dumps(value)
        case date():
            return value.isoformat()
    return str(value)


def changed(value: Any, rng: Random) -> Any:
    """Change one place in a tree of dictionaries and lists: another value, nothing, twice, or a new key."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.08:
            return {name: one for name, one in value.items() if name != key}
        if rng.random() < 0.05:
            return {**value, rng.choice(["extra", "", "a" * 5000, key.upper()]): value[key]}
        return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + 1 + (rng.random() < 0.1) :]]
    return rng.choice(VALUES)


def damaged(text: bytes, rng: Random) -> bytes:
    """Change a few bytes: cut, flip, repeat or insert."""
    for _ in range(rng.randint(1, 3)):
        at, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        put = rng.choice(
            [b"", b"nan", b"-1", b"\xff", b"\x00", b"[[", b'"', b"9" * 400, b"\n", text[at : at + 9]]
        )
        end = min(end, at + rng.choice([0, 1, 5, 5000]))
        text = text[:at] + put + text[end:]
    return text
