"""`slim`: assembles the sub-commands and turns our errors into one line and exit code 2."""

import sys

import typer

from slimsched.errors import SlimError

app = typer.Typer(
    name="slim",
    help="Serve slimmable networks on unequal devices, and place training jobs where the network lets them run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SlimError as error:
        print(f"slim: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
