"""A Slurm as the commands see it: looked at, and ready to be driven.

What happens on it is shown as lines and tables for people, and as JSON for machines.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from slimsched.cli.jobs.workload import SlurmOptions, read_models, read_quotas
from slimsched.core.clock import Wake, WakeAt
from slimsched.core.config import ConfigError
from slimsched.core.log import Observer
from slimsched.jobs.domain import fabric_named, where
from slimsched.jobs.scheduler import messages
from slimsched.jobs.scheduler.messages import LiveCommand, LiveEvent
from slimsched.jobs.setting import POLICIES, SchedulerSetting
from slimsched.jobs.slurm import controller
from slimsched.jobs.slurm.controller import SlurmController, SlurmSnapshot
from slimsched.jobs.slurm.wire import SlurmClient


class SlurmView:
    """An observer that tells of every event and command as it happens, and passes it on to the log."""

    def __init__(self, log: Observer, speed: float, *, as_json: bool) -> None:
        self._log = log
        self._speed = speed
        self._as_json = as_json
        self._console = Console(stderr=True)

    def observe(self, now_s: float, machine: str, event: Any, commands: Sequence[Any]) -> None:
        """Pass one entry on, and show it."""
        self._log.observe(now_s, machine, event, commands)
        for news in (event, *commands):
            if self._as_json:
                line = msgspec.json.encode({"now_s": now_s, **msgspec.to_builtins(news)})
                print(line.decode(), flush=True)
            elif text := sentence(news):
                at = time.strftime("%H:%M:%S", time.localtime(now_s / self._speed))
                self._console.print(f"[dim]{at}[/dim] {text}", highlight=False)


def sentence(news: LiveEvent | LiveCommand) -> str:
    """Put an event or command into words; wake-ups need none."""
    match news:
        case messages.StartJob(job_id=job_id, placement=placement):
            return f"start   {job_id} on {where(placement)}"
        case messages.PreemptJob(job_id=job_id, reason=reason):
            return f"stop    {job_id}: {reason}"
        case messages.JobSubmitted(job=job):
            return f"waits   {job.id}: {job.gpus} GPUs {job.model}"
        case messages.JobFoundRunning(job=job, placement=placement):
            return f"runs    {job.id} on {where(placement)}"
        case messages.JobFinished(job_id=job_id):
            return f"done    {job_id}"
        case messages.JobPreempted(job_id=job_id, served_s=served_s):
            return f"stopped {job_id} after {served_s:.0f} s of service; it waits again"
        case messages.StartFailed(job_id=job_id, reason=reason):
            return f"failed  {job_id} did not start: {reason}"
        case messages.Rebuilt(reason=reason):
            return f"look    state taken from Slurm: {reason}"
        case messages.NodeDown(machine=machine):
            return f"down    {machine}"
        case messages.NodeUp(machine=machine):
            return f"up      {machine}"
        case messages.RefuseJob(job_id=job_id, reason=reason):
            return f"refused {job_id}: {reason}"
        case Wake() | WakeAt():
            return ""
        case _:
            assert_never(news)


def show_plan(plan: controller.DryRun, *, as_json: bool) -> None:
    """Show what a dry run would do."""
    if as_json:
        print(msgspec.json.encode(plan).decode())
        return
    console = Console()
    if not plan.commands:
        console.print("Nothing to do now.")
    for command in plan.commands:
        console.print(sentence(command), highlight=False)
    for call in plan.calls:
        console.print(f"[dim]  {call}[/dim]", highlight=False)


def show_outlook(outlook: controller.Outlook, seen: SlurmSnapshot, *, as_json: bool) -> None:
    """Show whom a gang would displace, where it would run, or why it waits."""
    if as_json:
        print(msgspec.json.encode(outlook).decode())
        return
    console = Console()
    if outlook.victims:
        table = Table("victim", "user", "GPUs", "runs on", title=f"Stopped for {outlook.job.gpus} GPUs")
        for job_id in outlook.victims:
            observed = seen.jobs[job_id]
            table.add_row(job_id, observed.slurm.user, str(observed.job.gpus), where(observed.placement))
        console.print(table)
    else:
        console.print("Nobody would be stopped.")
    if outlook.placement:
        console.print(f"It would run on {where(outlook.placement)}.", highlight=False)
    elif outlook.explanation is not None:
        console.print(f"It would wait: {outlook.explanation.reason}.", highlight=False)


class SlurmSite(Struct, frozen=True, kw_only=True):
    """A Slurm that was looked at, and how to schedule it."""

    client: SlurmClient
    preflight: controller.Preflight
    options: SlurmOptions
    setting: SchedulerSetting
    patience_s: float
    warn: Callable[[str], None]

    def look(self) -> SlurmSnapshot:
        """Look at Slurm once."""
        partition, speed = self.options.partition, self.options.speed
        racks, unix_s = self.preflight.racks, time.time()
        return controller.observe(self.client, racks=racks, partition=partition, unix_s=unix_s, speed=speed)

    def controller(self, client: SlurmClient, observer: Observer | None = None) -> SlurmController:
        """Make a controller that knows nothing yet."""
        return SlurmController(
            client=client, setting=self.setting, patience_s=self.patience_s, observer=observer, warn=self.warn
        )


def find_site(
    options: SlurmOptions, *, patience_s: float = 30.0, warn: Callable[[str], None] = lambda text: None
) -> SlurmSite:
    """Check the options and the Slurm they name."""
    if POLICIES.make(options.policy).knows_service:
        raise ConfigError(
            f"policy '{options.policy}' must be told how long jobs take, which Slurm cannot; take another"
        )
    fabric = fabric_named(options.network)
    client = SlurmClient(conf=options.conf)
    checked = controller.check(client, partition=options.partition)
    for warning in checked.warnings:
        warn(warning)
    return SlurmSite(
        client=client,
        preflight=checked,
        options=options,
        setting=SchedulerSetting(
            engine="slurm",
            policy=options.policy,
            cluster="slurm",
            fabric=fabric,
            models=read_models(options.model_file),
            quotas=read_quotas(options.quota),
        ),
        patience_s=patience_s,
        warn=warn,
    )
