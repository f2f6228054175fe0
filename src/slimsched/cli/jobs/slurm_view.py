"""Shows what happens, or would happen, on Slurm: lines and tables for people, JSON for machines."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import msgspec
from rich.console import Console
from rich.table import Table

from slimsched.jobs.domain.placement import Placement
from slimsched.jobs.execution.slurm.controller import Entry, Rebuilt
from slimsched.jobs.execution.slurm.observation import Clock, Observation
from slimsched.jobs.execution.slurm.preview import Outlook, Plan
from slimsched.jobs.scheduling.commands import PreemptJob, StartJob, WakeAt
from slimsched.jobs.scheduling.events import (
    JobFinished,
    JobFoundRunning,
    JobPreempted,
    JobSubmitted,
    NodeDown,
    NodeUp,
    StartFailed,
    Wake,
)
from slimsched.jobs.scheduling.explanation import Explanation


def recorder(
    console: Console, clock: Clock, *, log: Path | None, as_json: bool
) -> Callable[[float, Entry], None]:
    """Tells of every event and command as it happens."""

    def record(now_s: float, entry: Entry) -> None:
        if log is not None or as_json:
            line = msgspec.json.encode({"now_s": now_s, **msgspec.to_builtins(entry)}).decode()
            if log is not None:
                with log.open("a") as file:
                    file.write(line + "\n")
            if as_json:
                print(line, flush=True)
        text = sentence(entry)
        if text and not as_json:
            at = time.strftime("%H:%M:%S", time.localtime(clock.unix_s(now_s)))
            console.print(f"[dim]{at}[/dim] {text}", highlight=False)

    return record


def sentence(entry: Entry) -> str:
    """An event or command in words; empty for what concerns nobody."""
    match entry:
        case StartJob(job_id=job_id, placement=placement):
            return f"start   {job_id} on {where(placement)}"
        case PreemptJob(job_id=job_id, reason=reason):
            return f"stop    {job_id}: {reason}"
        case JobSubmitted(job=job):
            return f"waits   {job.id}: {job.gpus} GPUs {job.model}"
        case JobFoundRunning(job=job, placement=placement):
            return f"runs    {job.id} on {where(placement)}"
        case JobFinished(job_id=job_id):
            return f"done    {job_id}"
        case JobPreempted(job_id=job_id, served_s=served_s):
            return f"stopped {job_id} after {served_s:.0f} s of service; it waits again"
        case StartFailed(job_id=job_id, reason=reason):
            return f"failed  {job_id} did not start: {reason}"
        case Rebuilt(reason=reason):
            return f"look    state taken from Slurm: {reason}"
        case NodeDown(machine=machine):
            return f"down    {machine}"
        case NodeUp(machine=machine):
            return f"up      {machine}"
        case Wake() | WakeAt():
            return ""
        case _:
            assert_never(entry)


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """What a dry run found."""
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


def show_outlook(outlook: Outlook, seen: Observation, *, as_json: bool) -> None:
    """Whom a gang would displace, where it would run, or why it waits."""
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


def show_explanation(reason: Explanation, *, speed: float, as_json: bool) -> None:
    """Why a job waits, or where it runs."""
    if as_json:
        print(msgspec.json.encode(reason).decode())
        return
    console = Console()
    console.print(f"Job {reason.job_id} ({reason.gpus} GPUs): {reason.reason}.", highlight=False)
    if reason.allowed_tier is None:
        return
    if reason.declined_offers:
        console.print(f"It declined {reason.declined_offers} offers.", highlight=False)
    if reason.timer_left_s is not None and reason.next_tier is not None:
        left_s = max(0.0, reason.timer_left_s / speed)
        console.print(f"It takes one {reason.next_tier.name.lower()} in {left_s:.0f} s.", highlight=False)
    if reason.victims_considered:
        console.print(f"Victims considered: {', '.join(reason.victims_considered)}.", highlight=False)


def where(placement: Placement) -> str:
    """A placement in words."""
    return ", ".join(f"{name}×{gpus}" for name, gpus in placement)
