"""Errors in a user's model, with the file and line of the user's code if known."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slimsched.core.config import SlimError

LIBRARIES = ("site-packages", "dist-packages")
OWN = str(Path(__file__).parents[1])


class ModelError(SlimError):
    """A model that cannot be loaded or run; `remedy` says what to change."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


@contextmanager
def users_code(doing: str, *, remedy: str = "") -> Iterator[None]:
    """Turn any exception of the user's code into a ModelError that names the file and the line."""
    try:
        yield
    except SlimError:
        raise
    except Exception as error:
        raise _fault(error, doing, remedy) from error


def _fault(error: Exception, doing: str, remedy: str) -> ModelError:
    text = " ".join(str(error).split()) or "no message"
    if len(text) > 300:
        text = f"{text[:300]}…"
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return ModelError(
            f"{doing}: {error.filename}, line {error.lineno}: {error.msg}",
            remedy=remedy or "correct the line",
        )
    place = _place(error)
    where = f"{place[0]}, line {place[1]}: " if place else ""
    return ModelError(f"{doing}: {where}{kind}: {text}", remedy=remedy or "correct that line and try again")


def _place(error: Exception) -> tuple[str, int] | None:
    """Return the innermost line of the user's own code; if there is none, the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [
        frame
        for frame in frames
        if not frame.filename.startswith((OWN, "<"))
        and not any(library in frame.filename for library in LIBRARIES)
        and "/lib/python" not in frame.filename
    ]
    chosen = users[-1] if users else (frames[-1] if frames else None)
    return None if chosen is None else (chosen.filename, chosen.lineno or 0)
