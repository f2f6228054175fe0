"""`slim replay`: do fresh machines decide the same again?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.options import AsJson
from slimsched.core.config import DataError
from slimsched.core.log import Difference, Header, Log, Replayable, Replayed, find_logs, replay


def serving_machines(header: Header) -> Callable[[str], Replayable]:
    """Make the gateway, the schedulers and the autoscaler of a serving run."""
    from slimsched.serving.execution.replay import machines_of

    return machines_of(header)


def job_machines(header: Header) -> Callable[[str], Replayable]:
    """Make the scheduler of a run of training jobs, simulated or on Slurm."""
    from slimsched.jobs.setting import machines_of

    return machines_of(header.setting)


MACHINES: dict[str, Callable[[Header], Callable[[str], Replayable]]] = {
    "serving": serving_machines,
    "jobs": job_machines,
}
"""Kind of run → who makes its machines by name."""

ENDINGS = {
    "closed": "",
    "full": "stops at its size limit; compared as far as it goes",
    "killed": "has no end: its process was killed or still runs; compared as far as it goes",
}


class Compared(Struct, frozen=True, kw_only=True):
    """One log: what was compared, and how it ended."""

    log: str
    ended: str
    replayed: Replayed


def command(
    path: Annotated[Path, typer.Argument(help="An event log, or the folder of a run.")],
    as_json: AsJson = False,
) -> None:
    """Replay the event logs of a run into fresh machines and compare every decision.

    Exits with 1 when a decision differs, and shows the first that does.

    Examples:

      slim simulate --seconds 2 --out runs/two && slim replay runs/two

      slim demo && slim replay runs/demo

      slim jobs simulate --jobs 200 --out runs/jobs && slim replay runs/jobs
    """
    logs: list[Compared] = []
    for one in find_logs(path):
        logs.append(_compare(one, one.name if one == path else str(one.relative_to(path))))
        if logs[-1].replayed.difference is not None:
            break
    difference = logs[-1].replayed.difference
    if as_json:
        print(json.dumps(_row(logs)))
    else:
        _show(Console(soft_wrap=True, highlight=False), logs)
    if difference is not None:
        raise typer.Exit(1)


def _compare(path: Path, name: str) -> Compared:
    log = Log(path)
    make = MACHINES.get(log.header.kind)
    if make is None:
        known = ", ".join(MACHINES)
        raise DataError(f"{name} is the log of a run of kind '{log.header.kind}'; slim replay knows {known}")
    replayed = replay(log.entries(), make(log.header))
    ended = log.ending.ended if log.ending is not None else "killed"
    return Compared(log=name, ended="cut" if replayed.difference else ended, replayed=replayed)


def _row(logs: list[Compared]) -> dict[str, object]:
    entries, commands, machines = _totals(logs)
    difference = logs[-1].replayed.difference
    return {
        "decisions": entries,
        "commands": commands,
        "machines": machines,
        "same": difference is None,
        "log": logs[-1].log if difference is not None else None,
        "difference": msgspec.to_builtins(difference),
        "logs": {one.log: {"decisions": one.replayed.entries, "ended": one.ended} for one in logs},
    }


def _totals(logs: list[Compared]) -> tuple[int, int, int]:
    replayed = [one.replayed for one in logs]
    return (
        sum(one.entries for one in replayed),
        sum(one.commands for one in replayed),
        sum(one.machines for one in replayed),
    )


def _show(console: Console, logs: list[Compared]) -> None:
    entries, commands, machines = _totals(logs)
    difference = logs[-1].replayed.difference
    for one in logs:
        if note := ENDINGS.get(one.ended, ""):
            console.print(f"{one.log} {note}")
    compared = f"{entries:,} decisions ({commands:,} commands) of {machines} machines compared"
    if difference is None:
        console.print(f"{compared}: all are equal, no difference")
        return
    console.print(f"{compared}: {entries - 1:,} are equal, the last is not")
    _show_difference(console, logs[-1].log, difference)


def _show_difference(console: Console, log: str, difference: Difference) -> None:
    console.print(
        f"first difference at entry {difference.number} of {log}, {difference.machine} "
        f"at {difference.now_s:.6f} s"
    )
    shown = {"event": difference.event, "log": difference.logged, "replay": difference.replayed}
    for title, value in shown.items():
        console.print(f"  {title:7}{msgspec.json.encode(value).decode()}", markup=False)
