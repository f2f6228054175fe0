"""How a model runs on a kind of device: precision, memory format, compiled or not (see `slim model tune`).

A model folder keeps them in run.toml:

    [cpu]
    precision = "bfloat16"
    channels_last = true
"""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from slimsched.core.config import ConfigError, convert, read_toml

RUN = "run.toml"
Precision = Literal["float32", "bfloat16", "float16"]
Kind = Literal["cpu", "cuda"]


class RunOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults leave the model as its own code makes it."""

    precision: Precision = "float32"
    channels_last: bool = False
    compile: bool = False

    def __str__(self) -> str:
        words = [self.precision, *(["channels_last"] if self.channels_last else [])]
        return ", ".join([*words, *(["compiled"] if self.compile else [])])


AS_IS = RunOptions()


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: RunOptions = AS_IS
    cuda: RunOptions = AS_IS


def read_run_options(folder: Path, kind: str) -> RunOptions:
    """Read how the model of a folder runs on this kind of device."""
    return getattr(_read(folder), kind)  # type: ignore[no-any-return]


def write_run_options(folder: Path, kind: Kind, options: RunOptions) -> None:
    """Write what `slim model tune` chose; options of the other kind stay as they are."""
    file = msgspec.structs.replace(_read(folder), **{kind: options})
    lines = ["# How this model runs fastest with the same answers; written by slim model tune."]
    for name in ("cpu", "cuda"):
        chosen: RunOptions = getattr(file, name)
        lines += ["", f"[{name}]", f'precision = "{chosen.precision}"']
        lines += [f"channels_last = {str(chosen.channels_last).lower()}"]
        lines += [f"compile = {str(chosen.compile).lower()}"]
    (folder / RUN).write_text("\n".join(lines) + "\n")


def _read(folder: Path) -> _File:
    path = folder / RUN
    if not path.is_file():
        return _File()
    try:
        return convert(read_toml(path), _File, path.name)
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}; write it again with slim model tune {folder}") from None
