"""The goal that was set while running, kept in a file so that a restart goes on with it."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.kernel.errors import ConfigError


class _Kept(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The goal, and the router the server was started with when it was set."""

    started_with: str
    goal: str


class GoalState:
    """Counts for a server that is started with the same router and goal again: a new command line wins."""

    def __init__(self, path: Path, started_with: str) -> None:
        self._path, self._started_with = path, started_with

    def read(self) -> str | None:
        """The goal to go on with, if there is one."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(
                f"{self._path} is no state of a server ({error}); remove it, or name another with --state"
            ) from None
        return kept.goal if kept.started_with == self._started_with else None

    def write(self, goal: str) -> None:
        """Keep a goal; a reader sees the old file or the new one, never a part."""
        kept = _Kept(started_with=self._started_with, goal=goal)
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(msgspec.json.encode(kept))
            os.replace(beside, self._path)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path} ({error}); choose a file that can be") from None
