"""Every number that comes from a file or the command line has a type with a range: none can be forgotten.

The types are found in the source: whatever is given to a conversion or a decoder is walked, field by field.
"""

import ast
import importlib
import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import typer
from msgspec import Meta, Struct

import slimsched
from slimsched.cli.app import HOMES
from slimsched.jobs.setting import POLICIES
from slimsched.serving.routers.registry import _TABLE as ROUTER_TABLE

SOURCE = Path(slimsched.__file__).parent

NOT_INPUT = {
    "serving/api": "the protocols check what they are sent, with refusals of their own",
    "serving/ray": "messages between our own processes",
    "serving/live/wire.py": "messages between our own processes",
    "serving/live/server.py": "what the gateway tells its own servers",
    "serving/live/cuda.py": "messages between our own processes",
    "serving/telemetry/live_view.py": "entries of a log, which are only shown; JSON has no NaN",
    "serving/telemetry/stories.py": "entries of a log, which are only told; JSON has no NaN",
    "core/log.py": "events of a log, which it checks one by one; JSON has no NaN",
}
"""Where something is decoded that is not a file or an option of the user, and why."""

ONLY_SHOWN = {"Frame", "Progress", "JobProgress"}
"""Figures that a run left in a JSON file, and that are only drawn again."""

GENERIC = {"core/config.py", "core/plugins.py", "cli/options.py", "models/network.py"}
"""Where the type is a parameter: its callers are looked at."""

CONVERSIONS = {"convert": 1, "read_section": 1, "Decoder": 0, "read_card_of": 1}
"""Function → the place of the type among its arguments."""


def test_every_type_that_a_file_is_read_into_has_ranges() -> None:
    found = list(_decoded_types())
    assert {"Load", "Link", "Device", "ProfileRecord", "Recipe", "Job", "FiguresFile"} <= {
        getattr(kind, "__name__", "") for _, kind in found
    }
    loose = [f"{where}: {path}" for where, kind in found for path in _loose(kind, where)]
    assert not loose, "\n".join(sorted(set(loose)))


def test_every_option_of_every_command_has_a_range() -> None:
    loose = []
    for name, command in (one for home in HOMES.items() for one in _commands_at(*home)):
        hints = get_type_hints(inspect.unwrap(command), include_extras=True)
        numbers = [path for field, kind in hints.items() for path in _loose(kind, field)]
        loose += [f"{name}: {path}" for path in numbers]
        ranged = any(_ranges(kind) for kind in hints.values())
        assert not ranged or hasattr(command, "__wrapped__"), f"{name}: decorate it with with_options"
    assert not loose, "\n".join(loose)


@pytest.mark.parametrize("table", [ROUTER_TABLE, POLICIES], ids=["routers", "policies"])
def test_every_option_of_a_router_or_policy_has_a_range(table: Any) -> None:
    loose = [
        f"{name}: {option.name}"
        for name in table.builtin
        for option in table.options(name).values()
        if any(_loose(option.annotation, option.name))
    ]
    assert not loose, "\n".join(loose)


def test_the_walk_finds_a_number_without_a_range() -> None:
    class Inner(Struct):
        watts: float

    class Outer(Struct):
        good: Annotated[float, Meta(ge=0, le=1)]
        half: Annotated[int, Meta(ge=0)]
        inner: dict[str, tuple[Inner, ...]] | None

    assert sorted(_loose(Outer, "outer")) == ["outer.half", "outer.inner.watts"]


def _loose(kind: Any, path: str, seen: frozenset[Any] = frozenset()) -> Iterator[str]:
    """List the numbers in a type that have no range, or one that lets NaN or infinity through."""
    if kind in (int, float):
        yield path
    elif get_origin(kind) is Annotated:
        inner, *extras = get_args(kind)
        if inner in (int, float):
            if not _is_bounded(kind, [one for one in extras if isinstance(one, Meta)]):
                yield path
        else:
            yield from _loose(inner, path, seen)
    elif isinstance(kind, type) and issubclass(kind, Struct):
        if kind not in seen:
            for name, hint in get_type_hints(kind, include_extras=True).items():
                yield from _loose(hint, f"{path}.{name}", seen | {kind})
    elif get_origin(kind) in (Union, UnionType, list, tuple, dict):
        for one in get_args(kind):
            yield from _loose(one, path, seen)


def _is_bounded(kind: Any, metas: list[Meta]) -> bool:
    def has(*names: str) -> bool:
        return any(getattr(meta, name) is not None for meta in metas for name in names)

    def takes(value: float) -> bool:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return False
        return True

    return has("ge", "gt") and has("le", "lt") and not any(map(takes, (math.nan, math.inf, -math.inf)))


def _ranges(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Struct):
        return any(_ranges(hint) for hint in get_type_hints(kind, include_extras=True).values())
    own = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, Meta)]
    return bool(own) or any(_ranges(one) for one in get_args(kind) if get_origin(kind))


def _commands_at(name: str, home: str) -> Iterator[tuple[str, Any]]:
    """Yield the command that a table of `slim` names, or all commands of a group."""
    module, _, there = home.partition(":")
    loaded = getattr(importlib.import_module(f"slimsched.cli.{module}"), there)
    if isinstance(loaded, typer.Typer):
        yield from _commands(loaded, f"slim {name}")
    else:
        yield f"slim {name}", loaded


def _commands(group: typer.Typer, name: str) -> Iterator[tuple[str, Any]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{name} {command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _commands(inner.typer_instance, f"{name} {inner.name}")


def _decoded_types() -> Iterator[tuple[str, Any]]:
    """Yield every type that the source converts or decodes something into, and where."""
    for file in sorted(SOURCE.rglob("*.py")):
        place = str(file.relative_to(SOURCE))
        if place in GENERIC or any(place.startswith(one) for one in NOT_INPUT):
            continue
        module = None
        for call in [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]:
            if (expression := _type_argument(call)) is None:
                continue
            module = module or importlib.import_module(f"slimsched.{place[:-3].replace('/', '.')}")
            text = ast.unparse(expression)
            for kind in _resolve(text, module):
                if getattr(kind, "__name__", "") not in ONLY_SHOWN:
                    yield f"{place}:{call.lineno} {text}", kind


def _type_argument(call: ast.Call) -> ast.expr | None:
    """Return the type that a call converts to, as it stands in the source; None if it converts nothing."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "decode":
        return next((one.value for one in call.keywords if one.arg == "type"), None)
    if isinstance(function, ast.Attribute) and name == "convert" and ast.unparse(function.value) != "msgspec":
        return None
    position = CONVERSIONS.get(name)
    return None if position is None or len(call.args) <= position else call.args[position]


KNOWN_NAMES = {
    ("models/package.py", "kind"): ["NetworkShape", "VitShape"],
    ("serving/workload/arrivals.py", "ARRIVALS[kind][1]"): ["BurstShape", "DayShape", "NoShape", "StepShape"],
    ("jobs/slurm/wire.py", "kind"): ["JobRequest", "Memory"],
}
"""A type that the source computes: which it can be."""


def _resolve(text: str, module: ModuleType) -> list[Any]:
    assert module.__file__ is not None
    place = str(Path(module.__file__).relative_to(SOURCE))
    names = KNOWN_NAMES.get((place, text), [text])
    try:
        return [eval(name, vars(module)) for name in names]
    except NameError:
        raise AssertionError(f"{place} converts to '{text}': add it to KNOWN_NAMES") from None
