"""`slim` in this process, as a user types it: its exit code, what it printed, and a limit on its time."""

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from typer.testing import CliRunner as TyperRunner

from slimsched.cli.app import assembled, main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class CliRunner(TyperRunner):
    """Invokes `slim` in this process, with what Typer's own runner offers."""

    def invoke(self, words: list[str], **more: Any) -> Any:  # type: ignore[override]
        """Run one command."""
        return super().invoke(assembled(), words, **more)


class HangError(Exception):
    """A command took longer than its limit."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Break off what takes longer; nothing that is checked here should."""

    def stop(number: int, frame: object) -> None:
        raise HangError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def slim(*words: str, seconds: float = 30.0) -> Done:
    """Run one command; an error that is not one line of ours is raised, as a user would see its traceback."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with patch.object(sys, "argv", ["slim", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            with time_limit(seconds):
                main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
    return Done(code, out.getvalue(), err.getvalue())


def refusal(*words: str, seconds: float = 30.0) -> str:
    """Run a command that must be refused, and return the one line that says why."""
    done = slim(*words, seconds=seconds)
    assert done.code in (1, 2), done
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("slim: "), done.err
    return lines[0].removeprefix("slim: ")
