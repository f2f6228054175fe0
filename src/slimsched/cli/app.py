"""`slim`: assembles the sub-commands and turns our errors into one line and exit code 2."""

import sys

import typer

from slimsched.cli import replay, report
from slimsched.cli.jobs import app as jobs
from slimsched.cli.models import data, model
from slimsched.cli.serving import (
    bound,
    client,
    compare,
    demo,
    load,
    profile,
    reproduce,
    router,
    serve,
    servers,
    simulate,
    validate,
)
from slimsched.kernel.errors import SlimError

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
app.command("replay")(replay.command)
app.command("report")(report.command)
app.command("serve")(serve.command)
app.command("client")(client.command)
app.command("load")(load.command)
app.command("profile")(profile.command)
app.command("validate")(validate.command)
app.command("reproduce")(reproduce.command)
app.add_typer(servers.app, name="servers", help="Servers on Ray: list them, let them join and leave.")
app.add_typer(router.app, name="router", help="Train and list routers.")
app.add_typer(model.app, name="model", help="Make, check, train, evaluate and look at models.")
app.add_typer(data.app, name="data", help="Fetch and check data sets.")
app.add_typer(jobs.app, name="jobs", help="Place training jobs on a cluster.")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SlimError as error:
        print(f"slim: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
