"""Options that commands share, each group one struct, and the decorator that gives a struct to Typer.

Typer makes one option of each parameter of a function. A command with twenty options would be a function with
twenty parameters. With `with_options` a command takes structs instead:

    class LoadOptions(Struct, frozen=True, kw_only=True):
        rate: Annotated[Rate | None, typer.Option("--rate", help="Requests per second.")] = None
        seconds: Annotated[RunSeconds | None, typer.Option("--seconds", help="Length of the run.")] = None

    @with_options
    def command(load: LoadOptions, as_json: AsJson = False) -> None: ...

Typer then sees `--rate`, `--seconds` and `--json`. A subclass that repeats a field changes its default.

The types of numbers come from `core/config.py`. Typer sees plain floats and integers; their ranges are
checked here, for every option of the command, before the command runs.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import NODEFAULT, Meta, Struct
from typer.models import ArgumentInfo, OptionInfo

from slimsched.core import config
from slimsched.core.config import ConfigError, describe_range

Seed = Annotated[config.Seed, typer.Option("--seed", help="The same seed gives the same run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take structs of options; Typer sees their fields as parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Struct]] = {}
    checked: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, Struct):
            groups[name] = kind
            parameters += _fields_as_parameters(kind)
            checked |= get_type_hints(kind, include_extras=True)
        else:
            parameters.append(parameter.replace(annotation=_plain(kind), kind=inspect.Parameter.KEYWORD_ONLY))
            checked[name] = kind

    @wraps(command)
    def flat_command(**given: Any) -> None:
        for name, value in given.items():
            _check(name, checked[name], value)
        values = {
            name: kind(**{field: given.pop(field) for field in kind.__struct_fields__})
            for name, kind in groups.items()
        }
        command(**values, **given)

    flat_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat_command.__annotations__ = {one.name: one.annotation for one in parameters}
    return flat_command


def _fields_as_parameters(kind: type[Struct]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=_plain(hints[field.name]),
        )
        for field in msgspec.structs.fields(kind)
    ]


def _plain(annotation: Any) -> Any:
    """Return an annotation as Typer understands it: without the ranges of numbers."""
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        kept = [one for one in extras if not isinstance(one, Meta)]
        bare = _plain(inner)
        for one in kept:
            bare = Annotated[bare, one]
        return bare
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(_plain(one) for one in get_args(annotation))]  # noqa: UP007
    return annotation


def _check(name: str, annotation: Any, value: Any) -> None:
    """Refuse the value of an option that is out of its type's range."""
    allowed = describe_range(annotation)
    if not allowed or value is None:
        return
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        shown = f"{value:g}" if isinstance(value, float) else value
        raise ConfigError(f"{_flag(name, annotation)} is {shown}; give a number {allowed}") from None


def _flag(name: str, annotation: Any) -> str:
    """Return what the user types for an option, or how help calls an argument."""
    if any(isinstance(one, ArgumentInfo) for one in get_args(annotation)):
        return name.upper()
    options = [one for one in get_args(annotation) if isinstance(one, OptionInfo)]
    flags = [flag for one in options for flag in (one.default, *(one.param_decls or ()))]
    return next((flag for flag in flags if isinstance(flag, str)), f"--{name.replace('_', '-')}")


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is NODEFAULT else field.default
