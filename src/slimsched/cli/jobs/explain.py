"""`slim jobs explain`: why a job waits, in a simulated trace or on a Slurm."""

import json
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.jobs.workload import Conf, Partition, PolicyName, SlurmOptions, Speed, Workload
from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import Seconds, UnknownNameError

if TYPE_CHECKING:
    from slimsched.jobs.domain import Job
    from slimsched.jobs.scheduler.scheduler import Explanation
    from slimsched.jobs.simulated.comparison import JobSetting
    from slimsched.jobs.telemetry import JobHistory


@with_options
def explain(
    workload: Workload,
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    at_s: Annotated[
        Seconds | None, typer.Option("--at-s", help="Look at this time; else just before its first start.")
    ] = None,
    policy: PolicyName = "dally",
    engine: Annotated[
        str, typer.Option("--engine", help="Who has the job: simulated or slurm.")
    ] = "simulated",
    partition: Partition = None,
    speed: Speed = 1.0,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Say why a job waits: declined offers, timer left, allowed tier, nearest feasible domain, victims.

    On Slurm, give the options that the controller runs with. --trace, --cluster, --arrivals, --at-s and the
    like are for simulated jobs; --partition, --speed and --conf for those on Slurm.

    Examples:

      slim jobs explain g17 --trace generated --jobs 500 --arrivals batch

      slim jobs explain 41 --trace tiresias --cluster tiresias-16 --at-s 900 --json

      slim jobs explain 1234 --engine slurm --policy dally --network congested
    """
    if engine == "slurm":
        slurm = SlurmOptions(
            policy=policy,
            network=workload.network,
            partition=partition,
            quota=workload.quota,
            speed=speed,
            model_file=workload.model_file,
            conf=conf,
        )
        _explain_on_slurm(slurm, job, as_json=as_json)
    elif engine == "simulated":
        _explain_simulated(workload, job, policy, at_s, as_json=as_json)
    else:
        raise UnknownNameError("engine", engine, ("simulated", "slurm"))


def _explain_on_slurm(slurm: SlurmOptions, job: str, *, as_json: bool) -> None:
    from slimsched.cli.jobs.slurm_site import find_site
    from slimsched.jobs.slurm import controller

    site = find_site(slurm)
    explanation = controller.explanation(site.client, site.controller, site.look(), job)
    if as_json:
        print(msgspec.json.encode(explanation).decode())
    else:
        print_explanation(explanation, speed=slurm.speed)


def _explain_simulated(
    workload: Workload, job: str, policy: str, at_s: float | None, *, as_json: bool
) -> None:
    setting, jobs = workload.prepare()
    if all(one.id != job for one in jobs):
        raise UnknownNameError("job", job, [one.id for one in jobs[:5]] + ["…"])
    if at_s is None:
        at_s = _before_first_start_s(job, policy, jobs, setting, workload.seed)
    explanation = _explain(job, policy, jobs, setting, workload.seed, at_s)
    if as_json:
        print(json.dumps({"at_s": at_s, **msgspec.to_builtins(explanation)}, indent=1))
    else:
        Console().print(f"[dim]at {at_s:.0f} s[/dim]", highlight=False)
        print_explanation(explanation)


def print_explanation(explanation: "Explanation", *, speed: float = 1.0) -> None:
    """Print why a job waits, or where it runs; `speed` is the scheduler's seconds per second."""
    console = Console(highlight=False)
    console.print(f"[bold]Job {explanation.job_id}[/bold] ({explanation.gpus} GPUs): {explanation.reason}.")
    if explanation.allowed_tier is None:
        return
    waited_s = explanation.waited_s / speed
    console.print(f"  It has waited {waited_s:.0f} s and declined {explanation.declined_offers} offers.")
    if explanation.queue_position is not None:
        console.print(f"  It is number {explanation.queue_position} in the order.")
    console.print(f"  It takes a placement within one {explanation.allowed_tier.name.lower()}.")
    if explanation.timer_left_s is not None and explanation.next_tier is not None:
        left_s = max(0.0, explanation.timer_left_s / speed)
        console.print(f"  In {left_s:.0f} s it will take one {explanation.next_tier.name.lower()}.")
    if explanation.nearest is not None:
        near = explanation.nearest
        console.print(f"  Nearest is {near.name}: {near.free_gpus} GPUs free, {near.missing_gpus} missing.")
    if explanation.victims_considered:
        console.print(f"  Victims considered: {', '.join(explanation.victims_considered)}.")


def _before_first_start_s(
    job_id: str, policy: str, jobs: "list[Job]", setting: "JobSetting", seed: int
) -> float:
    from slimsched.jobs.simulated.comparison import build
    from slimsched.jobs.telemetry import histories

    history = histories(build(policy, jobs, setting, seed).run())[job_id]
    started_s = history.runs[0].start_s
    return started_s if started_s == history.submitted_s else started_s - 1e-3


def _explain(
    job_id: str, policy: str, jobs: "list[Job]", setting: "JobSetting", seed: int, at_s: float
) -> "Explanation":
    from slimsched.jobs.simulated.comparison import build
    from slimsched.jobs.telemetry import histories

    simulation = build(policy, jobs, setting, seed)
    history = histories(simulation.run(until_s=at_s)).get(job_id)
    if history is not None and history.finished_s is None:
        return simulation.scheduler.explain(job_id, now_s=at_s)
    return _not_here(next(job for job in jobs if job.id == job_id), history)


def _not_here(job: "Job", history: "JobHistory | None") -> "Explanation":
    """Explain a job that has not come yet, or has gone."""
    from slimsched.jobs.scheduler.scheduler import Explanation

    if history is None:
        reason = f"it arrives at {job.arrival_s:.0f} s"
        return Explanation(job_id=job.id, state="not submitted", gpus=job.gpus, reason=reason)
    wait_s = history.wait_s
    reason = f"it finished at {history.finished_s:.0f} s, after {wait_s:.0f} s without GPUs"
    return Explanation(job_id=job.id, state="finished", gpus=job.gpus, waited_s=wait_s, reason=reason)
