"""`slim jobs`."""

import typer

from slimsched.cli import jobs_slurm

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Group of commands."""


jobs_slurm.register(app)
