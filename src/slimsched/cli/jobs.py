"""`slim jobs`: place training jobs on a cluster, simulated or real."""

import typer

from slimsched.cli import jobs_slurm
from slimsched.cli.jobs_compare import compare
from slimsched.cli.jobs_explain import explain
from slimsched.cli.jobs_models import models
from slimsched.cli.jobs_simulate import simulate
from slimsched.cli.jobs_train import train

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Place training jobs where the network lets them run."""


app.command()(simulate)
app.command()(compare)
app.command()(explain)
app.command()(models)
app.command()(train)
jobs_slurm.register(app)
