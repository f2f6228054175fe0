"""Plugins: parts that users choose by name, such as routers and job policies, built-in or their own.

A spec names a part and sets its options: `name`, `name:option=value:option=value`. The name is

* a name in the built-in table, or
* an entry point that an installed package declares in the table's group, or
* a class in a file: `my_policy.py:MyPolicy`, `my_policy.py:MyPolicy:option=value`.

The options are the keyword parameters of the class or function behind the name. Their annotations say what a
value must be: float, int, bool, str, Path or a Literal, each with `| None` if you like. A number is always
finite; a type of `core/config.py`, or any `Annotated` with a msgspec `Meta`, gives it a range. A value
without a name goes to the next option in order, so `manual:10:20` is `manual:machine_s=10:rack_s=20`.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from slimsched.core.config import ConfigError, SlimError, UnknownNameError, describe_range

T = TypeVar("T")
Maker = Callable[..., T]
"""A class or function that makes a part."""
Options = dict[str, inspect.Parameter]
"""The parameters of a maker that a spec can set, by name."""


class PluginTable(Generic[T]):
    """The parts of one kind: built-in, from installed packages, and from files.

    `kind` is the word for error messages and `group` the name of the entry points. `context` lists what the
    program itself passes to `make`; such parameters are never options. `result`, if given, is the class that
    a part must be an instance of.
    """

    def __init__(
        self,
        *,
        kind: str,
        group: str,
        builtin: Mapping[str, Maker[T]],
        context: Iterable[str] = (),
        result: type | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self.builtin = dict(builtin)
        self._context = frozenset(context)
        self._result = result

    def names(self) -> tuple[str, ...]:
        """List every name: built-in first, then from installed packages."""
        return (*self.builtin, *(name for name in sorted(self._installed()) if name not in self.builtin))

    def make(self, spec: str, **context: Any) -> T:
        """Make a part; it gets the entries of the context that it has parameters for."""
        maker, texts = self._resolve(spec)
        options = self._values(spec, texts, self._options(maker))
        accepted = _parameters(maker)
        takes_all = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
        passed = {name: value for name, value in context.items() if takes_all or name in accepted}
        try:
            part = maker(**passed, **options)
        except SlimError as error:
            raise ConfigError(f"{self.kind} '{spec}': {error}") from error
        if self._result is not None and not isinstance(part, self._result):
            raise ConfigError(
                f"'{spec}' is not a {self.kind}: derive it from "
                f"{self._result.__module__}.{self._result.__name__}"
            )
        return part

    def options(self, spec: str) -> Options:
        """List the options of the part that a spec names."""
        return self._options(self._resolve(spec)[0])

    def takes(self, spec: str, name: str) -> bool:
        """Whether the part that a spec names has this parameter, as an option or as context."""
        return name in _parameters(self._resolve(spec)[0])

    def _resolve(self, spec: str) -> tuple[Maker[T], list[str]]:
        """Find the maker that a spec names, and the texts that follow the name."""
        name, *texts = spec.split(":")
        if name.endswith(".py"):
            return self._from_file(Path(name), texts), texts[1:]
        if name in self.builtin:
            return self.builtin[name], texts
        installed = self._installed()
        if name not in installed:
            raise UnknownNameError(self.kind, name, [*self.names(), "or a class in a file, FILE.py:Class"])
        try:
            maker: Maker[T] = installed[name].load()
        except Exception as error:
            point = installed[name]
            package = f"the package {point.dist.name}" if point.dist else f"'{point.value}'"
            raise ConfigError(
                f"{self.kind} '{name}' comes from {package} and cannot be loaded: "
                f"{type(error).__name__}: {error}; mend or uninstall that package"
            ) from error
        return maker, texts

    def _installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _from_file(self, path: Path, texts: list[str]) -> Maker[T]:
        module = _load(path, self.kind)
        own = [
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_")
        ]
        known = f"it has: {', '.join(own)}" if own else "it has no class"
        if not texts:
            raise ConfigError(f"{path} names no class; write {path}:Class ({known})")
        maker: Maker[T] | None = getattr(module, texts[0], None)
        if not callable(maker):
            raise ConfigError(f"{path} has no class '{texts[0]}'; {known}")
        return maker

    def _options(self, maker: Maker[T]) -> Options:
        """List the keyword parameters of a maker that can be written as text and are not context."""
        return {
            name: parameter
            for name, parameter in _parameters(maker).items()
            if name not in self._context
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and _is_text(parameter.annotation)
        }

    def _values(self, spec: str, texts: list[str], options: Options) -> dict[str, Any]:
        """Turn the texts after the name into typed values, and check that none is missing."""
        what = f"{self.kind} '{spec}'"
        unset, values = list(options), {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():  # only a value, such as a path with an `=`
                value = text
                if not unset:
                    raise ConfigError(f"{what}: nothing takes '{text}'; {_listed(options)}")
                name = unset[0]
            if name not in options:
                raise ConfigError(f"{what}: unknown option '{name}'; {_listed(options)}")
            if name in values:
                raise ConfigError(f"{what}: option '{name}' is given twice; give it once")
            values[name] = _convert(what, options[name], value)
            unset.remove(name)
        for name in unset:
            if options[name].default is inspect.Parameter.empty:
                raise ConfigError(f"{what}: option '{name}' is missing; {_listed(options)}")
        return values


def _convert(what: str, option: inspect.Parameter, text: str) -> Any:
    """Read a text as a value of the option's type."""

    def to_path(kind: type, value: str) -> Path:
        return Path(value)

    kind = str if option.annotation is inspect.Parameter.empty else option.annotation
    try:
        value = msgspec.convert(text, kind, strict=False, dec_hook=to_path)
    except msgspec.ValidationError:
        value = None
        if NoneType not in get_args(kind) or text.lower() not in ("", "none"):
            raise ConfigError(f"{what}: {option.name} is '{text}'; give {described(kind)}") from None
    if isinstance(value, float) and not isfinite(value):
        raise ConfigError(f"{what}: {option.name} is '{text}'; give {described(kind)}")
    return value


_TYPES: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    NoneType: "none",
    inspect.Parameter.empty: "a text",
}


def _is_text(annotation: Any) -> bool:
    """Whether values of a type can be written in a spec."""
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_text(one) for one in get_args(annotation))
    return get_origin(annotation) is Literal or annotation in _TYPES


def described(annotation: Any) -> str:
    """Say in words which values an annotation allows."""
    if get_origin(annotation) is Annotated:
        return f"{described(get_args(annotation)[0])} {describe_range(annotation)}".rstrip()
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(described(one) for one in get_args(annotation))
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(str(value) for value in get_args(annotation))}"
    return _TYPES[annotation]


def _listed(options: Options) -> str:
    if not options:
        return "it has no options"
    return "its options: " + ", ".join(
        f"{name} ({described(one.annotation)})" for name, one in options.items()
    )


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker, eval_str=True).parameters
    except ValueError:  # a class without a signature, such as one compiled to C
        return {}


def _load(path: Path, kind: str) -> ModuleType:
    """Run a user's file as a module; run it again only when it has changed."""
    if not path.is_file():
        raise ConfigError(f"no file {path}; a {kind} of your own is named as FILE.py:Class")
    try:
        return _run_file(path.resolve(), path.stat().st_mtime_ns)
    except SlimError:
        raise
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


@cache
def _run_file(path: Path, changed_ns: int) -> ModuleType:
    name = f"slim_plugin_{path.stem}_{sha256(f'{path}{changed_ns}'.encode()).hexdigest()[:8]}"
    return run_file(path, name)


def run_file(path: Path, name: str, folders: list[str] | None = None) -> ModuleType:
    """Run a file as a module of this name; with folders as a package, whose parts are found there."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
