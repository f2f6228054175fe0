"""Failures: what an error that ends a command says to the user, in one line, and its exit code.

An error that is our own fault has no line here: its traceback is what a report of the bug needs.
"""

import errno
from importlib.util import find_spec

from slimsched.core.config import SlimError

EXTRAS = {
    "torch": "torch",
    "PIL": "client",
    "tensorboard": "torch",
    "matplotlib": "plot",
    "gymnasium": "learn",
    "cma": "learn",
    "httptools": "serve",
    "uvloop": "serve",
    "grpc": "serve",
    "google": "serve",
    "pynvml": "serve",
    "ray": "ray",
    "opentelemetry": "otel",
}
"""Module → the extra of pyproject.toml that installs it."""

INCLUDES = {
    "serve": {"torch", "PIL", "tensorboard", "httptools", "uvloop", "grpc", "google", "pynvml"},
    "torch": {"torch", "PIL", "tensorboard"},
    "learn": {"torch", "gymnasium", "cma"},
}
"""Extra → the modules that come with it."""

NEEDS = {
    "serve": "serve",
    "load": "serve",
    "demo": "serve",
    "validate": "serve",
    "profile": "torch",
    "model": "torch",
    "data": "torch",
    "router": "learn",
}
"""Command → the extra that has all it needs; what is named for one module would lack the next."""

REMEDIES = {
    errno.ENOSPC: "make room on the disk, or choose another place",
    errno.EDQUOT: "make room on the disk, or choose another place",
    errno.EACCES: "choose a place that you may use",
    errno.EPERM: "choose a place that you may use",
    errno.EROFS: "choose a place that can be written",
    errno.ENOENT: "check the path; a folder to write into must be there first",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "name a file, not a folder",
    errno.EEXIST: "choose another name",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "allow more open files with: ulimit -n",
    errno.ENOMEM: "ask for less at once",
    errno.EADDRINUSE: "choose another port",
}
SHOWN = 200
"""Characters of a path that a line shows."""


def line_of(error: BaseException, command: str = "") -> tuple[str, int] | None:
    """Return the line and the exit code for an error of a command; None if it is a bug of ours."""
    match error:
        case SlimError():
            return str(error), 2
        case ModuleNotFoundError(name=str(name)) if name.partition(".")[0] in EXTRAS:
            module = name.partition(".")[0]
            extra = NEEDS.get(command, "")
            extra = extra if module in INCLUDES.get(extra, ()) else EXTRAS[module]
            remedy = f"install it with: pip install 'slim-scheduler[{extra}]'"
            return f"this command needs {module}, which is not installed; {remedy}", 1
        case OSError():
            return _line_of_os_error(error), 1
        case MemoryError():
            return "out of memory; ask for a shorter run, a lower rate, or fewer workers", 1
    return None


def need(module: str) -> None:
    """Refuse to go on where a module is missing that only other processes will import."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)


def _line_of_os_error(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    names = [str(one) for one in (error.filename, error.filename2) if one is not None]
    where = "".join(f" '{name if len(name) <= SHOWN else name[:SHOWN] + '…'}'" for name in names)
    return f"{what}{':' if where else ''}{where}; {REMEDIES.get(error.errno or 0, 'check the path')}"
