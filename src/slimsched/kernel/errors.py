"""Errors say what happened, with which values, and what to do."""


class SlimError(Exception):
    """A mistake the user can mend; the command line prints it as one line and exits with 2."""


class ConfigError(SlimError):
    """A configuration file holds something it may not."""


class DataError(SlimError):
    """A data file is missing, damaged, or of another kind than asked for."""


class WidthError(SlimError):
    """A width that the network was not trained at."""


class UnknownNameError(SlimError):
    """A name that stands in no table."""

    def __init__(self, kind: str, name: str, known: "list[str] | tuple[str, ...]") -> None:
        super().__init__(f"unknown {kind} '{name}'; known: {', '.join(known)}")
