"""Commands that look at a run that was logged: `slim replay`, `slim report` and `slim explain`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.cli.options import AsJson, need, with_options
from slimsched.core.config import ConfigError, DataError, Identity
from slimsched.core.log import Difference, Header, Log, Replayable, Replayed, find_logs, replay

if TYPE_CHECKING:
    from slimsched.serving.telemetry.stories import RequestStory

# -- `slim explain`: why a request of a logged run went where it went.


@with_options
def explain_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder left by --out or --log, or a log.")],
    request: Annotated[
        Identity | None, typer.Argument(metavar="[REQUEST]", help="Number of the request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why a request went where it went: each decision, its costs, the runner-up, what binds.

    Without REQUEST, the slowest answered request is explained.

    Examples:

      slim simulate --seconds 2 --router goal --out runs/one && slim explain runs/one

      slim explain runs/one 1500 --json
    """
    from slimsched.serving.scenario.files import read_setting
    from slimsched.serving.telemetry.stories import slowest, tell_story

    logs = [one for one in find_logs(run) if Log(one).header.kind == "serving"]
    if not logs:
        raise DataError(f"{run} has no log of a serving run; slim jobs explain explains training jobs")
    setting = read_setting(Log(logs[0]).header)
    number = slowest(logs) if request is None else request
    if number is None:
        raise ConfigError(f"no request of {run} was answered; name one: slim explain {run} REQUEST")
    story = tell_story(logs, number, setting.build().cluster)
    if as_json:
        print(json.dumps(msgspec.to_builtins(story)))
    else:
        _print_story(Console(highlight=False), story, setting.router)


def _print_story(console: Console, story: "RequestStory", router: str) -> None:
    console.print(f"[bold]Request {story.request}[/bold], router {escape(router)}")
    steps = Table.grid(padding=(0, 2, 0, 0))
    steps.add_column(justify="right", no_wrap=True)
    for step in story.steps:
        steps.add_row(f"{step.at_s:.4f} s", escape(step.text))
    console.print(steps)


# -- `slim report`: a run folder as one page, or an event log on the dashboard.


@with_options
def report_command(
    run_dir: Annotated[Path, typer.Argument(help="A folder left by --out, or an event log.")],
    out: Annotated[
        Path | None, "The HTML file; report.html in the folder or beside the log if left out."
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
    from slimsched.serving.domain.cluster import GATEWAY_NAME
    from slimsched.serving.gateway.gateway import Gateway
    from slimsched.serving.scenario.files import read_setting
    from slimsched.serving.telemetry.live_view import frames_of

    header = Log(log).header
    gateway = machines_of(header)(GATEWAY_NAME).machine
    assert isinstance(gateway, Gateway)
    out.write_text(replay_page(frames_of(log, gateway, read_setting(header).router)), encoding="utf-8")
    return out


# -- `slim replay`: do fresh machines decide the same again?


def machines_of(header: Header) -> Callable[[str], Replayable]:
    """Return what makes the machines of a run by name: of serving, or of training jobs."""
    if header.kind == "jobs":
        from slimsched.jobs import setting

        return setting.machines_of(header.setting)
    from slimsched.serving.scenario import replay as serving

    return serving.machines_of(header)


ENDINGS = {
    "closed": "",
    "full": "stops at its size limit; compared as far as it goes",
    "killed": "has no end: its process was killed or still runs; compared as far as it goes",
}


class ReplayedLog(Struct, frozen=True, kw_only=True):
    """One log: what was compared, and how it ended."""

    log: str
    ended: str
    replayed: Replayed


def replay_command(
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
    logs: list[ReplayedLog] = []
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


def _compare(path: Path, name: str) -> ReplayedLog:
    log = Log(path)
    replayed = replay(log.entries(), machines_of(log.header))
    ended = log.ending.ended if log.ending is not None else "killed"
    return ReplayedLog(log=name, ended="cut" if replayed.difference else ended, replayed=replayed)


def _row(logs: list[ReplayedLog]) -> dict[str, object]:
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


def _totals(logs: list[ReplayedLog]) -> tuple[int, int, int]:
    replayed = [one.replayed for one in logs]
    return (
        sum(one.entries for one in replayed),
        sum(one.commands for one in replayed),
        sum(one.machines for one in replayed),
    )


def _show(console: Console, logs: list[ReplayedLog]) -> None:
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
    console.print(f"  {difference.story}", markup=False)
