"""`slim jobs`: place training jobs on a cluster, simulated or real."""

import typer

from slimsched.cli.jobs import slurm as jobs_slurm
from slimsched.cli.jobs.explain import explain
from slimsched.cli.jobs.simulate import compare, models, simulate
from slimsched.cli.jobs.whatif import whatif

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Place training jobs where the network lets them run."""


app.command()(simulate)
app.command()(compare)
app.command()(explain)
app.command()(models)
app.command()(whatif)
jobs_slurm.register(app)
