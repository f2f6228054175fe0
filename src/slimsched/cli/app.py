"""`slim`: assembles the sub-commands and turns errors into one line and an exit code."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from slimsched import __version__
from slimsched.cli import replay, report
from slimsched.cli.failure import line_of
from slimsched.cli.help_text import tidy
from slimsched.cli.jobs import app as jobs
from slimsched.cli.models import data, model
from slimsched.cli.serving import (
    bound,
    client,
    compare,
    demo,
    explain,
    load,
    profile,
    router,
    serve,
    servers,
    simulate,
    validate,
)

app = typer.Typer(
    name="slim",
    help="Serve elastic models on unequal devices; place training jobs where the network lets them run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo.command)
app.command("simulate")(simulate.command)
app.command("compare")(compare.command)
app.command("bound")(bound.command)
app.command("explain")(explain.command)
app.command("replay")(replay.command)
app.command("report")(report.command)
app.command("serve")(serve.command)
app.command("client")(client.command)
app.command("load")(load.command)
app.command("profile")(profile.command)
app.command("validate")(validate.command)
app.add_typer(servers.app, name="servers", help="Servers on Ray: list them, let them join and leave.")
app.add_typer(router.app, name="router", help="Train and list routers.")
app.add_typer(model.app, name="model", help="Make, check, train, evaluate and look at models.")
app.add_typer(data.app, name="data", help="Fetch and check data sets.")
app.add_typer(jobs.app, name="jobs", help="Place training jobs on a cluster.")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"slim-scheduler {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Serve elastic models on unequal devices; place training jobs where the network lets them run."""


def command_line() -> Any:
    """Return the command line with all its commands, their help tidied."""
    return tidy(typer.main.get_command(app))


def main() -> None:
    """Run the command line."""
    sys.exit(run(sys.argv[1:]))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(
            OSError, ValueError
        ):  # else Python tries again when it ends, and has an exit code for it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; an error becomes one line, a bug keeps its traceback."""
    try:
        try:
            command_line()(list(words), prog_name="slim")
        finally:
            _flush()  # a full disk behind it shows here, not when Python ends
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        known = line_of(error, words[0] if words else "")
        if known is None:
            raise
        print(f"slim: {known[0]}", file=sys.stderr)
        return known[1]
    return 0
