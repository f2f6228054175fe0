"""`slim jobs run | submit | victims`: training jobs on a real Slurm."""

import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.jobs.slurm_site import SlurmSite, SlurmView, find_site, show_outlook, show_plan
from slimsched.cli.jobs.workload import Conf, ModelFile, Partition, SlurmOptions, read_models
from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import ConfigError, Count, DataError, PollSeconds, Seconds, UnknownNameError
from slimsched.core.log import EVENTS, LogWriter
from slimsched.jobs.domain import Job
from slimsched.jobs.slurm import controller
from slimsched.jobs.slurm.wire import JobRequest, SlurmClient


class SlurmRunOptions(Struct, frozen=True, kw_only=True):
    """How long the controller runs, how often it looks, and where it leaves its log."""

    until_idle: Annotated[bool, "Stop when no job is left."] = False
    poll_s: Annotated[PollSeconds, "Seconds between two looks."] = 1.0
    patience_s: Annotated[Seconds, "Seconds a start may take."] = 30.0
    out: Annotated[Path | None, "Leave the event log in this folder; else in runs/slurm-DATE-TIME."] = None


@with_options
def run(
    slurm: SlurmOptions,
    options: SlurmRunOptions,
    engine: Annotated[str, "Who runs the jobs: slurm."] = "slurm",
    dry_run: Annotated[bool, "Say what would be done now; touch nothing."] = False,
    as_json: AsJson = False,
) -> None:
    """Place, widen, preempt and requeue the gangs of a Slurm cluster, until stopped.

    You may kill and restart it at any time: what it must remember is stored in Slurm. It leaves an event
    log; slim replay checks every decision in it.

    Examples:

      slim jobs run --engine slurm --policy dally --network oversubscribed

      slim jobs run --engine slurm --dry-run
    """
    if engine != "slurm":
        raise UnknownNameError("engine", engine, ("slurm",))
    console = Console(stderr=True)
    site = find_site(
        slurm,
        patience_s=options.patience_s,
        warn=lambda text: console.print(f"[yellow]{text}[/yellow]", highlight=False),
    )
    if dry_run:
        show_plan(controller.plan(site.client, site.controller, site.look()), as_json=as_json)
    else:
        _drive(site, options, as_json=as_json)


def _drive(site: SlurmSite, options: SlurmRunOptions, *, as_json: bool) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with controller.sole_controller(site.preflight.cluster, site.options.partition):
        path = _log_path(options.out or Path("runs") / time.strftime("slurm-%Y%m%d-%H%M%S"))
        with LogWriter(path, site.setting.header()) as log:
            controller.run(
                site.controller(site.client, SlurmView(log, site.options.speed, as_json=as_json)),
                look=site.look,
                speed=site.options.speed,
                poll_s=options.poll_s,
                stop=stop,
                until_idle=options.until_idle,
                warn=site.warn,
                after_round=log.flush,
            )
    if not as_json:
        Console(stderr=True).print(f"written: {path}", highlight=False)


def _log_path(folder: Path) -> Path:
    """Choose a file for the log; a controller that was restarted leaves a file of its own."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write a log to {folder}: {error.strerror}; choose another --out") from None
    path, number = folder / EVENTS, 2
    while path.exists():
        path = folder / EVENTS.replace("events", f"events-{number:03}")
        number += 1
    return path


@with_options
def submit(
    script: Annotated[list[str], typer.Argument(help="Batch script and its arguments.")],
    gpus: Annotated[Count, "GPUs of the gang, in all."],
    model: Annotated[str, "What it trains: how much the network matters."] = "",
    tenant: Annotated[str, "Whose quota it counts against; else the user."] = "",
    name: Annotated[str | None, "The job's name."] = None,
    time_limit: Annotated[str | None, typer.Option("--time", help="Time limit, as for sbatch.")] = None,
    partition: Partition = None,
    sbatch: Annotated[list[str] | None, "One more option for sbatch."] = None,
    model_file: ModelFile = None,
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
    known = read_models(model_file)
    if model and model not in known:
        raise UnknownNameError("model", model, tuple(known))
    job_id = SlurmClient(conf=conf).submit(
        script,
        gpus=gpus,
        request=JobRequest(model=model, tenant=tenant),
        name=name,
        partition=partition,
        limit=time_limit,
        options=sbatch or (),
    )
    print(f'{{"job_id":"{job_id}"}}' if as_json else job_id)


@with_options
def victims(
    slurm: SlurmOptions,
    job: Annotated[str | None, typer.Argument(help="A job that waits; or give --gpus.")] = None,
    gpus: Annotated[Count | None, "GPUs of a gang that you think of."] = None,
    model: Annotated[str, "The model that this gang trains."] = "",
    as_json: AsJson = False,
) -> None:
    """Show whom the policy would stop to start a gang now, and where it would run; touch nothing.

    Examples:

      slim jobs victims 1234

      slim jobs victims --gpus 32 --model bert
    """
    if (job is None) == (gpus is None):
        raise ConfigError("name one waiting job, or give --gpus for a gang that you think of")
    site = find_site(slurm)
    seen = site.look()
    waiting = {job_id: observed.job for job_id, observed in seen.jobs.items() if observed.waits}
    if gpus is not None:
        gang = Job(id="new", arrival_s=seen.now_s, gpus=gpus, model=model)
    elif job in waiting:
        gang = waiting[job]
    else:
        raise UnknownNameError("waiting job", str(job), tuple(waiting) or ("none waits",))
    show_outlook(controller.outlook(site.client, site.controller, seen, gang), seen, as_json=as_json)
