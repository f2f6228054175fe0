"""Errors that say what happened, with which values, and what to do."""

from typing import Self

SHOWN = 60
"""Characters of a wrong name that an error shows."""


class SlimError(Exception):
    """An error that the user can fix; the command line prints it as one line and exits with 2."""


class ConfigError(SlimError):
    """A configuration is not valid."""


class DataError(SlimError):
    """A data file is missing, damaged, or of the wrong kind."""


class WidthError(SlimError):
    """A width that the model was not trained at."""


class UnknownNameError(SlimError):
    """A name that is not in its table."""

    def __init__(self, kind: str, name: str, known: "list[str] | tuple[str, ...]") -> None:
        shown = name if len(name) <= SHOWN else f"{name[:SHOWN]}…"
        super().__init__(f"unknown {kind} '{shown}'; known: {', '.join(known)}")
        self._parts = kind, name, known

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        """Let the error travel from a worker process."""
        return type(self), self._parts
