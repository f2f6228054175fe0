"""What each command says without the extra that it needs: one line that names the extra, and exit code 1.

python tests/without_extras.py          where no extra is installed (scripts/check-dist)
python tests/without_extras.py --hide   elsewhere: the modules of all extras are hidden first
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slimsched.cli.app import command_line, run
from slimsched.cli.options import EXTRAS

NEEDS = {
    "demo": "serve",
    "simulate --plot a.png": "plot",
    "compare --plot a.png": "plot",
    "compare --engine ray": "ray",
    "report run": "plot",
    "serve": "serve",
    "serve --engine ray": "ray",
    "machine": "serve",
    "client photos/cat/a.png": "client",
    "load": "serve",
    "load --plot a.png": "plot",
    "profile --out cpu.json": "torch",
    "validate": "serve",
    "servers list --attach shop": "ray",
    "servers start one --attach shop": "ray",
    "servers drain one --attach shop": "ray",
    "router train": "learn",
    "router train goal": "learn",
    "router train --plot a.png": "plot",
    "router train goal --engine ray": "ray",
    "model new mine": "torch",
    "model check mine": "torch",
    "model tune mine": "torch",
    "model train --data photos --config recipe.toml": "torch",
    "model evaluate --data photos": "torch",
    "model pareto --plot a.png": "plot",
    "model profile mine": "torch",
    "model info": "torch",
    "data check --data photos": "torch",
    "jobs simulate --plot a.png": "plot",
    "jobs compare --plot a.png": "plot",
}
"""Command → the extra it asks for. A command may stand here several times, with other options."""

NEED_NOTHING = {
    "bound",
    "explain",
    "replay",
    "router list",
    "router tune",
    "data fetch",
    "jobs explain",
    "jobs models",
    "jobs run",
    "jobs submit",
    "jobs victims",
    "jobs whatif",
}


def names(command: Any = None, above: str = "") -> Iterator[str]:
    """List all commands by their names, such as `model new`."""
    command = command or command_line()
    if not hasattr(command, "commands"):
        yield above
        return
    for name, inner in command.commands.items():
        yield from names(inner, f"{above} {name}".strip())


def said_by(command: str) -> tuple[int, str]:
    """Run a command in a process of its own and return its exit code and all that it printed."""
    with tempfile.TemporaryFile("w+") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            try:
                os._exit(run(command.split()))
            except BaseException:
                traceback.print_exc()
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return code, printed.read().strip()


def main() -> int:
    """Try every command that needs an extra; print what it says, and return 1 if one says anything else."""
    if "--hide" in sys.argv:
        sys.modules.update(dict.fromkeys(EXTRAS))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("photos/cat").mkdir(parents=True)
        Path("photos/cat/a.png").write_bytes(b"not read")
        for command, extra in NEEDS.items():
            code, text = said_by(command)
            is_right = code == 1 and text.count("\n") == 0 and f"slim-scheduler[{extra}]" in text
            wrong += not is_right
            print(f"{'' if is_right else 'WRONG '}$ slim {command}\n{text}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
