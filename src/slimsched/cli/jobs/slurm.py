"""`slim jobs run | submit | victims | slurm-up | slurm-down`: training jobs on a real Slurm."""

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimsched.cli.jobs import kubernetes as jobs_kubernetes
from slimsched.kernel.errors import ConfigError, UnknownNameError

Conf = Annotated[Path | None, typer.Option(help="The cluster's slurm.conf; else SLURM_CONF or /etc/slurm.")]
Partition = Annotated[str | None, typer.Option(help="Only this partition's jobs and machines.")]
PolicyName = Annotated[str, typer.Option(help="The scheduler's policy.")]
Network = Annotated[str, typer.Option(help="The network between machines and racks.")]
Quota = Annotated[list[str] | None, typer.Option(help="TENANT=GPUS, as often as needed.")]
Speed = Annotated[float, typer.Option(help="Scheduler seconds a second; above 1 for demos.")]
AsJson = Annotated[bool, typer.Option("--json", help="Pure JSON on standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done now; touch nothing.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop when no job is left.")]
Folder = Annotated[Path, typer.Option(help="Where the throw-away Slurm lives.")]

_FOLDER = Path(tempfile.gettempdir()) / f"slim-slurm-{os.getuid()}"


def register(app: typer.Typer) -> None:
    """Add the commands that act on real clusters."""
    app.command()(run)
    app.command(context_settings={"allow_interspersed_args": False})(submit)
    app.command()(victims)
    app.command()(why)
    app.command("slurm-up")(slurm_up)
    app.command("slurm-down")(slurm_down)
    jobs_kubernetes.register(app)


def run(
    engine: Annotated[str, typer.Option(help="Who runs the jobs: slurm.")] = "slurm",
    policy: PolicyName = "dally",
    network: Network = "oversubscribed",
    partition: Partition = None,
    quota: Quota = None,
    dry_run: DryRun = False,
    until_idle: UntilIdle = False,
    poll_s: Annotated[float, typer.Option("--poll-s", min=0.05, help="Seconds between two looks.")] = 1.0,
    patience_s: Annotated[float, typer.Option("--patience-s", help="Seconds a start may take.")] = 30.0,
    speed: Speed = 1.0,
    log: Annotated[Path | None, typer.Option(help="Append events and commands to this file.")] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Place, widen, preempt and requeue the gangs of a Slurm cluster, until stopped.

    It may be killed and started again at any time: what it must remember stands in Slurm.

    Examples:

      slim jobs run --engine slurm --policy dally --network oversubscribed

      slim jobs run --engine slurm --dry-run
    """
    from slimsched.cli.jobs import slurm_view as view
    from slimsched.cli.jobs.slurm_setup import set_up
    from slimsched.jobs.execution.slurm import loop, preview
    from slimsched.jobs.execution.slurm.lock import sole_controller

    if engine != "slurm":
        raise UnknownNameError("engine", engine, ("slurm",))
    console = Console(stderr=True)
    setup = set_up(
        policy=policy,
        network=network,
        quota=quota,
        conf=conf,
        partition=partition,
        speed=speed,
        patience_s=patience_s,
        warn=lambda text: console.print(f"[yellow]{text}[/yellow]", highlight=False),
    )
    if dry_run:
        view.show_plan(preview.plan(setup.client, setup.make, setup.look()), as_json=as_json)
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with sole_controller(setup.preflight.cluster, partition):
        loop.run(
            setup.make(setup.client, view.recorder(console, setup.clock, log=log, as_json=as_json)),
            look=setup.look,
            clock=setup.clock,
            poll_s=poll_s,
            stop=stop,
            until_idle=until_idle,
            warn=setup.warn,
        )


def submit(
    script: Annotated[list[str], typer.Argument(help="Batch script and its arguments.")],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the gang, in all.")],
    model: Annotated[str, typer.Option(help="What it trains: how much the network matters.")] = "",
    tenant: Annotated[str, typer.Option(help="Whose quota it counts against; else the user.")] = "",
    name: Annotated[str | None, typer.Option(help="The job's name.")] = None,
    time_limit: Annotated[str | None, typer.Option("--time", help="Time limit, as for sbatch.")] = None,
    partition: Partition = None,
    sbatch: Annotated[list[str] | None, typer.Option(help="One more option for sbatch.")] = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Submit a gang to Slurm, held, for the controller to place. Options go before the script.

    The gang may be preempted: it gets SIGTERM, should save its state, and its script is run again
    later (see examples/slurm_checkpointing_gang.py).

    Examples:

      slim jobs submit --gpus 16 --model bert train.sh --epochs 3

      slim jobs submit --gpus 8 --sbatch=--cpus-per-gpu=4 train.sh
    """
    from slimsched.jobs.execution.slurm.client import SlurmClient
    from slimsched.jobs.execution.slurm.note import Request
    from slimsched.jobs.traces.known_models import TRAINING_MODELS

    if model and model not in TRAINING_MODELS:
        raise UnknownNameError("model", model, tuple(TRAINING_MODELS))
    job_id = SlurmClient(conf=conf).submit(
        script,
        gpus=gpus,
        request=Request(model=model, tenant=tenant),
        name=name,
        partition=partition,
        limit=time_limit,
        options=sbatch or (),
    )
    print(f'{{"job_id":"{job_id}"}}' if as_json else job_id)


def victims(
    job: Annotated[str | None, typer.Argument(help="A job that waits; or give --gpus.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of a gang only thought of.")] = None,
    model: Annotated[str, typer.Option(help="What the gang only thought of trains.")] = "",
    policy: PolicyName = "dally",
    network: Network = "oversubscribed",
    partition: Partition = None,
    quota: Quota = None,
    speed: Speed = 1.0,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Show whom the policy would stop to start a gang now, and where it would run; touch nothing.

    Examples:

      slim jobs victims 1234

      slim jobs victims --gpus 32 --model bert
    """
    from slimsched.cli.jobs import slurm_view as view
    from slimsched.cli.jobs.slurm_setup import set_up
    from slimsched.jobs.domain.job import Job
    from slimsched.jobs.execution.slurm import preview

    if (job is None) == (gpus is None):
        raise ConfigError("name one waiting job, or give --gpus for a gang only thought of")
    setup = set_up(
        policy=policy,
        network=network,
        quota=quota,
        conf=conf,
        partition=partition,
        speed=speed,
        patience_s=30.0,
        warn=lambda text: None,
    )
    seen = setup.look()
    waiting = {job_id: observed.job for job_id, observed in seen.jobs.items() if observed.waits}
    if gpus is not None:
        gang = Job(id="new", arrival_s=seen.now_s, gpus=gpus, model=model)
    elif job in waiting:
        gang = waiting[job]
    else:
        raise UnknownNameError("waiting job", str(job), tuple(waiting) or ("none waits",))
    view.show_outlook(preview.outlook(setup.client, setup.make, seen, gang), seen, as_json=as_json)


def why(
    job: Annotated[str, typer.Argument(help="A job that waits or runs.")],
    policy: PolicyName = "dally",
    network: Network = "oversubscribed",
    partition: Partition = None,
    quota: Quota = None,
    speed: Speed = 1.0,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job on Slurm waits: declined offers, timer left, allowed tier, nearest domain, victims.

    Give the options the controller runs with. Examples:

      slim jobs why 1234 --policy dally --network congested
    """
    from slimsched.cli.jobs import slurm_view as view
    from slimsched.cli.jobs.slurm_setup import set_up
    from slimsched.jobs.execution.slurm import preview

    setup = set_up(
        policy=policy,
        network=network,
        quota=quota,
        conf=conf,
        partition=partition,
        speed=speed,
        patience_s=30.0,
        warn=lambda text: None,
    )
    reason = preview.explanation(setup.client, setup.make, setup.look(), job)
    view.show_explanation(reason, speed=speed, as_json=as_json)


def slurm_up(
    folder: Folder = _FOLDER,
    racks: Annotated[int, typer.Option(min=1)] = 2,
    machines: Annotated[int, typer.Option(min=1, help="Machines a rack.")] = 4,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs a machine.")] = 8,
) -> None:
    """Start a throw-away Slurm on this machine: real daemons, fake GPUs, racks as switches.

    Examples:

      eval "$(slim jobs slurm-up)" && sinfo
    """
    from slimsched.jobs.execution.slurm.cluster import ThrowAwaySlurm

    cluster = ThrowAwaySlurm(
        folder.absolute(), racks=racks, machines_per_rack=machines, gpus_per_machine=gpus
    )
    cluster.start()
    Console(stderr=True).print(
        f"Slurm with {racks} racks × {machines} machines × {gpus} fake GPUs runs in {cluster.folder}; "
        "stop it with 'slim jobs slurm-down'",
        highlight=False,
    )
    print(f"export SLURM_CONF={cluster.conf}")


def slurm_down(folder: Folder = _FOLDER) -> None:
    """Stop the throw-away Slurm, its jobs included, and remove its folder."""
    from slimsched.jobs.execution.slurm.cluster import ThrowAwaySlurm

    cluster = ThrowAwaySlurm(folder.absolute())
    if not cluster.conf.exists():
        raise ConfigError(f"no throw-away Slurm lives in {folder}; name its folder with --folder")
    cluster.stop()
