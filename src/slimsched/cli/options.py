"""Options that commands share, each group one struct, and the decorator that gives a struct to Typer.

Typer makes one option of each parameter of a function. A command with twenty options would be a function with
twenty parameters. With `with_options` a command takes structs instead:

    class LoadOptions(Struct, frozen=True, kw_only=True):
        rate: Annotated[float | None, typer.Option("--rate", help="Requests per second.")] = None
        seconds: Annotated[float | None, typer.Option("--seconds", help="Length of the run.")] = None

    @with_options
    def command(load: LoadOptions, as_json: AsJson = False) -> None: ...

Typer then sees `--rate`, `--seconds` and `--json`. A subclass that repeats a field changes its default.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import msgspec
import typer
from msgspec import NODEFAULT, Struct

Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take structs of options; Typer sees their fields as parameters."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Struct]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, Struct):
            groups[name] = kind
            parameters += _fields_as_parameters(kind)
        else:
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def flat_command(**given: Any) -> None:
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
            annotation=hints[field.name],
        )
        for field in msgspec.structs.fields(kind)
    ]


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is NODEFAULT else field.default
