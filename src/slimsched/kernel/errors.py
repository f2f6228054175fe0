"""Errors that say what happened, with which values, and what to do."""


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
        super().__init__(f"unknown {kind} '{name}'; known: {', '.join(known)}")
