"""`slim explain`: why a request of a logged run went where it went."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import ConfigError, DataError, Identity

if TYPE_CHECKING:
    from slimsched.serving.telemetry.stories import RequestStory


@with_options
def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder left by --out or --log, or a log.")],
    request: Annotated[
        Identity | None, typer.Argument(metavar="[REQUEST]", help="Number of the request.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say why a request went where it went: each decision with its costs, its runner-up and what binds.

    Without REQUEST, the slowest answered request is explained.

    Examples:

      slim simulate --seconds 2 --router goal --out runs/one && slim explain runs/one

      slim explain runs/one 1500 --json
    """
    from slimsched.core.log import Log, find_logs
    from slimsched.serving.execution.run_setting import read_setting
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
        _print(Console(highlight=False), story, setting.router)


def _print(console: Console, story: "RequestStory", router: str) -> None:
    console.print(f"[bold]Request {story.request}[/bold], router {escape(router)}")
    steps = Table.grid(padding=(0, 2, 0, 0))
    steps.add_column(justify="right", no_wrap=True)
    for step in story.steps:
        steps.add_row(f"{step.at_s:.4f} s", escape(step.text))
    console.print(steps)
