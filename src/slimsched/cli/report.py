"""`slim report`: a run folder as one page."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimsched.cli.failure import need
from slimsched.cli.options import AsJson


def command(
    run_dir: Annotated[Path, typer.Argument(help="A folder left by --out.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; report.html in the folder if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run: one self-contained HTML file, and its pictures as PNG beside it.

    Examples:

      slim simulate --seconds 5 --kill server-0@2s --out runs/one && slim report runs/one

      slim compare --seconds 5 --out runs/all && slim report runs/all --out all.html

      slim jobs compare --jobs 500 --out runs/jobs && slim report runs/jobs
    """
    from slimsched.dashboard.report import write_report
    from slimsched.serving.telemetry.run_folder import read_run

    need("matplotlib")
    run = read_run(run_dir)
    if as_json:
        print(
            json.dumps({"written": [str(path) for path in write_report(run, out or run_dir / "report.html")]})
        )
        return
    with Console(stderr=True).status("drawing"):
        written = write_report(run, out or run_dir / "report.html")
    for path in written:
        Console().print(f"written: {path}", soft_wrap=True)
