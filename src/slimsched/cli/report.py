"""`slim report`: a run folder as one page, or an event log on the dashboard."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimsched.cli.failure import need
from slimsched.cli.options import AsJson
from slimsched.core.log import Log


def command(
    run_dir: Annotated[Path, typer.Argument(help="A folder left by --out, or an event log.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The HTML file; report.html in the folder or beside the log if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run: one self-contained HTML file, and its pictures as PNG beside it.

    Of an event log, such as `slim serve --log` leaves, it writes the dashboard with the run recorded in it.

    Examples:

      slim simulate --seconds 5 --kill server-0@2s --out runs/one && slim report runs/one

      slim compare --seconds 5 --out runs/all && slim report runs/all --out all.html

      slim jobs compare --jobs 500 --out runs/jobs && slim report runs/jobs

      slim simulate --seconds 5 --log run.jsonl.gz && slim report run.jsonl.gz --out run.html
    """
    with Console(stderr=True, quiet=as_json).status("drawing"):
        if run_dir.is_file():
            written = [_write_replay(run_dir, out or run_dir.with_name("report.html"))]
        else:
            written = _write_report(run_dir, out or run_dir / "report.html")
    if as_json:
        print(json.dumps({"written": [str(path) for path in written]}))
        return
    for path in written:
        Console().print(f"written: {path}", soft_wrap=True)


def _write_report(folder: Path, out: Path) -> list[Path]:
    from slimsched.dashboard.report import write_report
    from slimsched.serving.telemetry.run_folder import read_run

    need("matplotlib")
    return write_report(read_run(folder), out)


def _write_replay(log: Path, out: Path) -> Path:
    """Write the dashboard with the frames of an event log."""
    from slimsched.dashboard.page import replay_page
    from slimsched.serving.execution.run_setting import read_setting
    from slimsched.serving.telemetry.live_view import frames_of

    setting = read_setting(Log(log).header)
    out.write_text(replay_page(frames_of(log, setting.build().cluster, setting.router)), encoding="utf-8")
    return out
