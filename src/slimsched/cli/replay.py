"""`slim replay`: do fresh machines ask for the same again?"""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.options import AsJson
from slimsched.serving.execution.scenario_file import CONFIGS, build_scenario
from slimsched.serving.execution.simulated.replay import replay
from slimsched.serving.routing.registry import make_router
from slimsched.serving.telemetry.log import read_log


def command(
    log: Annotated[Path, typer.Argument(help="An event log written by slim simulate --log.")],
    as_json: AsJson = False,
) -> None:
    """Replay an event log into fresh machines and show the first difference, if any.

    Exits with 1 when there is one.

    Example:

      slim simulate --seconds 2 --log run.jsonl.gz && slim replay run.jsonl.gz
    """
    header, entries = read_log(log)
    beside = Path(header.beside) if header.beside else CONFIGS
    scenario = build_scenario(header.scenario, f"{log.name}: scenario", beside)
    found = replay(scenario, header.router, header.seed, entries, make=make_router)
    difference = found.difference
    if as_json:
        row = {"entries": found.entries, "machines": found.machines, "same": difference is None}
        print(json.dumps(row | {"difference": msgspec.to_builtins(difference)}))
    elif difference is None:
        Console().print(f"{found.entries} entries of {found.machines} machines replayed: no difference")
    else:
        entry = difference.entry
        console = Console()
        console.print(
            f"first difference at entry {difference.number}, {entry.machine} at {entry.now_s:.6f} s"
        )
        for title, value in (
            ("event", entry.event),
            ("log", entry.commands),
            ("replay", difference.replayed),
        ):
            console.print(f"  {title:7}{msgspec.json.encode(value).decode()}", markup=False)
    if difference is not None:
        raise typer.Exit(1)
