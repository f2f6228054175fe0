"""A model repository: a folder of model folders from which a running server may load.

    repository/cats/model.toml           one version, named in model.toml
    repository/dogs/1/model.toml         or one sub-folder per version
    repository/dogs/2/model.toml

Names that clients send are only looked up among what is there: they never become part of a path.
"""

import re
from pathlib import Path

from msgspec import Struct

from slimsched.core.config import ConfigError, SlimError
from slimsched.models.package import CARD, DESCRIPTION, read_spec


class StoredModel(Struct, frozen=True, kw_only=True):
    """One version of a model in the repository; `problem` says why it cannot be loaded, if it cannot."""

    name: str
    version: str
    folder: str
    problem: str = ""


class UnknownModelError(SlimError):
    """A model, or a version, that the repository does not have."""


class ModelRepository:
    """Lists and finds what a folder holds; the folder is read each time."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"no model repository at {folder}; give a folder whose sub-folders are models")
        self.folder = folder.resolve()

    def models(self) -> list[StoredModel]:
        """List every version of every model, by name, oldest version first."""
        return [model for folder in self._folders(self.folder) for model in self._stored(folder)]

    @property
    def row_bytes(self) -> int:
        """Bytes of one example's inputs, for the model with the largest."""
        good = [Path(model.folder) for model in self.models() if not model.problem]
        return max((read_spec(folder).row_bytes for folder in good), default=0)

    def find(self, name: str, version: str = "") -> StoredModel:
        """Find a version of a model, the newest one if none is named."""
        stored = self.models()
        named = [model for model in stored if model.name == name]
        if not named:
            known = ", ".join(sorted({f"'{model.name}'" for model in stored})) or "no models"
            raise UnknownModelError(f"no model '{name}' in the model repository; it has {known}")
        chosen = [model for model in named if version in ("", model.version)]
        if not chosen:
            known = ", ".join(f"'{model.version}'" for model in named)
            raise UnknownModelError(
                f"no version '{version}' of '{name}' in the model repository; it has {known}"
            )
        return chosen[-1]

    def _stored(self, folder: Path) -> list[StoredModel]:
        if _is_model(folder):
            return [self._read(folder, folder.name, "")]
        versions = sorted(self._folders(folder), key=_age)
        return [self._read(one, folder.name, one.name) for one in versions if _is_model(one)]

    def _read(self, folder: Path, name: str, version: str) -> StoredModel:
        try:
            spec = read_spec(folder)
        except SlimError as error:
            return StoredModel(name=name, version=version or "1", folder=str(folder), problem=str(error))
        problem = ""
        if spec.name != name:
            problem = f"its folder is called '{name}', but its name is '{spec.name}'; rename one of them"
        elif version and spec.version != version:
            problem = (
                f"its folder says version '{version}', its model.toml '{spec.version}'; change one of them"
            )
        return StoredModel(name=name, version=spec.version, folder=str(folder), problem=problem)

    def _folders(self, folder: Path) -> list[Path]:
        """List the sub-folders; links that lead out of the repository are left out."""
        folders = [one for one in sorted(folder.iterdir()) if one.is_dir() and not one.name.startswith(".")]
        return [one for one in folders if one.resolve().is_relative_to(self.folder)]


def _is_model(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or (folder / CARD).is_file()


def _age(folder: Path) -> list[tuple[int, str]]:
    """Order versions as people count: 2 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", folder.name)]
