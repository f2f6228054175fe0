"""A folder that joins models: its model.toml names the members and nothing else.

    name = "cats-and-more"
    members = ["cats", "slimvit"]     # folders beside this one, or shipped models by name

Reading needs no torch; only `load_joined` does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import ConfigError, DataError
from slimsched.kernel.section import read_toml
from slimsched.models.joined import Joined, Member
from slimsched.models.package import DESCRIPTION, is_joined, load_model, read_figures, read_quality, read_spec
from slimsched.models.shipped_models import (
    default_figures,
    default_quality,
    default_spec,
    load_default,
    shipped_folder,
)
from slimsched.models.shipped_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from slimsched.models.elastic import ElasticModel


class JoinedDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of model.toml."""

    name: str
    members: tuple[str, ...]
    version: str = "1"
    description: str = ""


def read_joined(folder: Path) -> Joined:
    """Read the members' specs, figures and quality tables, and join them."""
    content = _read_description(folder)
    members = [_read_member(source, folder) for source in content.members]
    try:
        return Joined(content.name, members, version=content.version, description=content.description)
    except ConfigError as error:
        raise ConfigError(f"{folder / DESCRIPTION}: {error}") from None


def load_joined(folder: Path) -> "ElasticModel":
    """Load the code and weights of all members."""
    from slimsched.models.joined_model import JoinedModel

    sources = _read_description(folder).members
    return JoinedModel(read_joined(folder), [_load_member(source, folder) for source in sources])


def member_sources(folder: Path) -> list[str]:
    """Return the members of a joined folder: shipped models by name, the others as paths."""
    return [
        source if source == DEFAULT_MODEL else str(_member_folder(source, folder))
        for source in _read_description(folder).members
    ]


def _read_description(folder: Path) -> JoinedDescription:
    path = folder / DESCRIPTION
    try:
        return msgspec.convert(read_toml(path), JoinedDescription)
    except msgspec.ValidationError as error:
        known = ", ".join(JoinedDescription.__struct_fields__)
        raise ConfigError(f"{path}: {error}; a folder that joins models has the keys {known}") from None


def _read_member(source: str, beside: Path) -> Member:
    if source == DEFAULT_MODEL:
        return Member(spec=default_spec(), figures=default_figures(), quality=default_quality())
    folder = _member_folder(source, beside)
    spec = read_spec(folder)
    try:
        quality = read_quality(folder, spec)
    except DataError:
        quality = None  # said where quality is needed
    return Member(spec=spec, figures=read_figures(folder, spec), quality=quality)


def _load_member(source: str, beside: Path) -> "ElasticModel":
    return load_default() if source == DEFAULT_MODEL else load_model(_member_folder(source, beside))


def _member_folder(source: str, beside: Path) -> Path:
    folder = shipped_folder(source) or beside / source
    if not folder.is_dir():
        raise ConfigError(
            f"{beside / DESCRIPTION}: no member '{source}': name a shipped model, or a folder beside {beside}"
        )
    if is_joined(folder):
        raise ConfigError(
            f"{beside / DESCRIPTION}: member '{source}' is joined itself; name its members instead"
        )
    return folder
