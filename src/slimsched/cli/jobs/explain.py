"""`slim jobs explain`: why a job of a simulated trace waited."""

import json
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.jobs import setting as options
from slimsched.kernel.errors import UnknownNameError

if TYPE_CHECKING:
    from slimsched.jobs.domain.job import Job
    from slimsched.jobs.scheduling.explanation import Explanation
    from slimsched.jobs.telemetry.runs import JobHistory


def explain(
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    at_s: Annotated[
        float | None, typer.Option("--at-s", help="Look at this time; else just before its first start.")
    ] = None,
    trace: options.Trace = "generated",
    policy: Annotated[str, typer.Option("--policy", help="Name of a policy.")] = "dally",
    cluster: options.Cluster = "racks-512",
    gpus: options.Gpus = None,
    network: options.Network = "congested",
    arrivals: options.Arrivals = "trace",
    load: options.Load = 1.0,
    jobs: options.Jobs = 0,
    seed: options.Seed = 0,
    failures: options.Failures = 0.0,
    quota: options.Quota = None,
    models: options.Models = None,
    data: options.Data = None,
    as_json: options.AsJson = False,
) -> None:
    """Say why a job waits: declined offers, timer left, allowed tier, nearest feasible domain, victims.

    Examples:

      slim jobs explain g17 --trace generated --jobs 500 --arrivals batch

      slim jobs explain 41 --trace tiresias --cluster tiresias-16 --at-s 900 --json
    """
    from slimsched.jobs.execution.simulated import comparison
    from slimsched.jobs.learning.registry import make_policy
    from slimsched.jobs.telemetry.runs import histories

    topology = options.read_topology(cluster, gpus)
    setting = options.make_setting(
        topology,
        network=network,
        arrivals=arrivals,
        load=load,
        jobs=jobs,
        failures=failures,
        quota=quota,
        models=models,
    )
    prepared = comparison.prepare(options.read_trace(trace, data, seed, jobs, topology), setting, seed)
    if all(one.id != job for one in prepared):
        raise UnknownNameError("job", job, [one.id for one in prepared[:5]] + ["…"])
    if at_s is None:
        history = histories(comparison.build(policy, prepared, setting, seed, make_policy).run())[job]
        started_s = history.runs[0].start_s
        at_s = started_s if started_s == history.submitted_s else started_s - 1e-3
    simulation = comparison.build(policy, prepared, setting, seed, make_policy)
    simulation.run(until_s=at_s)
    known = histories(simulation.log).get(job)
    if known is None or known.finished_s is not None:
        (asked,) = [one for one in prepared if one.id == job]
        reason = _not_here(asked, known)
    else:
        reason = simulation.scheduler.explain(job, now_s=at_s)
    if as_json:
        print(json.dumps({"at_s": at_s, **msgspec.to_builtins(reason)}, indent=1))
        return
    console = Console()
    console.print(f"[bold]job {job}[/bold] at {at_s:.0f} s: {reason.state}, {reason.gpus} GPUs")
    console.print(f"  {reason.reason}")
    if reason.allowed_tier is None:
        return
    console.print(f"  waited {reason.waited_s:.0f} s, declined {reason.declined_offers} offers")
    console.print(f"  takes a placement within one {reason.allowed_tier.name.lower()}")
    if reason.queue_position is not None:
        console.print(f"  number {reason.queue_position} in the order")
    if reason.timer_left_s is not None and reason.next_tier is not None:
        console.print(f"  {reason.timer_left_s:.0f} s until {reason.next_tier.name.lower()} will do")
    if reason.nearest is not None:
        near = reason.nearest
        console.print(f"  nearest: {near.name}, {near.free_gpus} GPUs free, {near.missing_gpus} missing")
    if reason.victims_considered:
        console.print(f"  victims considered: {', '.join(reason.victims_considered)}")


def _not_here(job: "Job", known: "JobHistory | None") -> "Explanation":
    """A job that has not come yet, or has gone."""
    from slimsched.jobs.scheduling.explanation import Explanation

    if known is None:
        said = f"it arrives at {job.arrival_s:.0f} s"
        return Explanation(job_id=job.id, state="not submitted", gpus=job.gpus, reason=said)
    said = f"finished at {known.finished_s:.0f} s after {known.wait_s:.0f} s without GPUs"
    return Explanation(job_id=job.id, state="finished", gpus=job.gpus, waited_s=known.wait_s, reason=said)
