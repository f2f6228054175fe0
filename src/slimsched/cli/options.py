"""Options that commands share, each group one struct, and the decorator that gives a struct to Typer.

Typer makes one option of each parameter of a function. A command with twenty options would be a function with
twenty parameters. With `with_options` a command takes structs instead:

    class LoadOptions(Struct, frozen=True, kw_only=True):
        rate: Annotated[Rate | None, "Requests per second."] = None
        seconds: Annotated[RunSeconds | None, "Length of the run."] = None

    @with_options
    def command(load: LoadOptions, as_json: AsJson = False) -> None: ...

Typer then sees `--rate`, `--seconds` and `--json`. A subclass that repeats a field changes its default.

The types of numbers come from `core/config.py`. Typer sees plain floats and integers; their ranges are
checked here, for every option of the command, before the command runs. A text beside a type is the help of
the flag that has the field's name; `typer.Option` says what else is special.

Paths that a command writes to are checked before it starts. An error that ends a command is one line for the
user, and an exit code.
"""

import errno
import inspect
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import NODEFAULT, Meta, Struct
from typer.models import ArgumentInfo, OptionInfo

from slimsched.core import config
from slimsched.core.config import ConfigError, SlimError, describe_range

# -- Failures: what an error that ends a command says to the user, in one line, and its exit code.
#
# An error that is our own fault has no line here: its traceback is what a report of the bug needs.

EXTRAS = {
    "torch": "torch",
    "PIL": "client",
    "tensorboard": "torch",
    "matplotlib": "plot",
    "gymnasium": "learn",
    "cma": "learn",
    "httptools": "serve",
    "uvloop": "serve",
    "grpc": "serve",
    "google": "serve",
    "pynvml": "serve",
    "ray": "ray",
    "opentelemetry": "otel",
}
"""Module → the extra of pyproject.toml that installs it."""

INCLUDES = {
    "serve": {"torch", "PIL", "tensorboard", "httptools", "uvloop", "grpc", "google", "pynvml"},
    "torch": {"torch", "PIL", "tensorboard"},
    "learn": {"torch", "gymnasium", "cma"},
}
"""Extra → the modules that come with it."""

NEEDS = {
    "serve": "serve",
    "load": "serve",
    "machine": "serve",
    "demo": "serve",
    "validate": "serve",
    "profile": "torch",
    "model": "torch",
    "data": "torch",
    "router": "learn",
}
"""Command → the extra that has all it needs; what is named for one module would lack the next."""

REMEDIES = {
    errno.ENOSPC: "make room on the disk, or choose another place",
    errno.EDQUOT: "make room on the disk, or choose another place",
    errno.EACCES: "choose a place that you may use",
    errno.EPERM: "choose a place that you may use",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path; a folder to write into must be there first",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "choose another name",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "allow more open files with: ulimit -n",
    errno.ENOMEM: "ask for less at once",
    errno.EADDRINUSE: "choose another port",
}
SHOWN = 200
"""Characters of a path that a line shows."""


def line_of(error: BaseException, command: str = "") -> tuple[str, int] | None:
    """Return the line and the exit code for an error of a command; None if it is a bug of ours."""
    match error:
        case SlimError():
            return str(error), 2
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in EXTRAS:
            module = name.partition(".")[0]
            extra = NEEDS.get(command, "")
            extra = extra if module in INCLUDES.get(extra, ()) else EXTRAS[module]
            remedy = f"install it with: pip install 'slim-scheduler[{extra}]'"
            return f"this command needs {module}, which is not installed; {remedy}", 1
        case OSError():
            return _line_of_os_error(error), 1
        case MemoryError():
            return "out of memory; ask for a shorter run, a lower rate, or fewer workers", 1
    return None


def need(module: str) -> None:
    """Refuse to go on where a module is missing that only other processes will import."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)


def _line_of_os_error(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    names = [str(one) for one in (error.filename, error.filename2) if one is not None]
    where = "".join(f" '{name if len(name) <= SHOWN else name[:SHOWN] + '…'}'" for name in names)
    return f"{what}{':' if where else ''}{where}; {REMEDIES.get(error.errno or 0, 'check the path')}"


# -- Paths that a command writes to, checked before it starts: a run of an hour must not end at a bad path.

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


def file_to_write(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written: a folder, or one in a folder that is not there."""
    if path is None:
        return None
    if path.is_dir():
        raise ConfigError(f"cannot write to {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write to {path}: there is no folder {path.parent}; make it first")
    return path


def picture(path: Path | None) -> Path | None:
    """Refuse a picture that cannot be drawn or written, or is of an unknown kind."""
    if path is None:
        return None
    if path.suffix.lower() not in PICTURES:
        kind = f"of kind '{path.suffix}'" if path.suffix else "without a kind"
        raise ConfigError(f"cannot draw {path}, a file {kind}; end its name in {', '.join(PICTURES)}")
    need("matplotlib")
    return file_to_write(path)


Seed = Annotated[config.Seed, typer.Option("--seed", help="The same seed gives the same run.")]
ModelSources = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="A model folder (slim model new makes one), instead of the scenario's models; may be repeated.",
    ),
]
GoalText = Annotated[
    str | None,
    'Limits and one objective, as in "accuracy>=75, p99<=60ms, min energy"; for routers that follow a goal.',
]
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
            plain = _with_help(name, kind)
            parameters.append(parameter.replace(annotation=plain, kind=inspect.Parameter.KEYWORD_ONLY))
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
            annotation=_with_help(field.name, hints[field.name]),
        )
        for field in msgspec.structs.fields(kind)
    ]


def _with_help(name: str, annotation: Any) -> Any:
    """Return an annotation as Typer understands it: a text, or a description, becomes the help of a flag."""
    bare = _plain(annotation)
    for one in getattr(annotation, "__metadata__", ()):
        text = one.description if isinstance(one, Meta) else one
        if isinstance(text, str):
            extra = one.extra if isinstance(one, Meta) else None
            return Annotated[bare, typer.Option(f"--{name.replace('_', '-')}", help=text, **(extra or {}))]
    return bare


def _plain(annotation: Any) -> Any:
    """Return an annotation as Typer understands it: without the ranges of numbers."""
    if get_origin(annotation) is Annotated:
        inner, *extras = get_args(annotation)
        kept = [one for one in extras if not isinstance(one, Meta | str)]
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
