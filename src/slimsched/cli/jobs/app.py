"""The commands of `slim jobs`, and the one that says why a job waits, simulated or on a Slurm."""

import json
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from slimsched.cli.jobs.simulate import compare, models, simulate, whatif
from slimsched.cli.jobs.slurm import run, submit, victims
from slimsched.cli.jobs.slurm_site import find_site
from slimsched.cli.jobs.workload import Conf, Partition, PolicyName, SlurmOptions, Speed, Workload
from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import Seconds, UnknownNameError
from slimsched.jobs.scheduler.scheduler import Explanation
from slimsched.jobs.simulated.comparison import build
from slimsched.jobs.slurm import controller
from slimsched.jobs.telemetry import histories

app = typer.Typer(no_args_is_help=True)


@app.callback()
def root() -> None:
    """Place training jobs where the network lets them run."""


@with_options
def explain(
    workload: Workload,
    job: Annotated[str, typer.Argument(help="Id of the job.")],
    at_s: Annotated[Seconds | None, "Look at this time; else just before its first start."] = None,
    policy: PolicyName = "dally",
    engine: Annotated[str, "Who has the job: simulated or slurm."] = "simulated",
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
    if engine == "simulated":
        _explain_simulated(workload, job, policy, at_s, as_json=as_json)
    elif engine == "slurm":
        slurm = SlurmOptions(
            policy=policy,
            network=workload.network,
            partition=partition,
            quota=workload.quota,
            speed=speed,
            model_file=workload.model_file,
            conf=conf,
        )
        site = find_site(slurm)
        explanation = controller.explanation(site.client, site.controller, site.look(), job)
        if as_json:
            print(msgspec.json.encode(explanation).decode())
        else:
            _print_explanation(explanation, speed=speed)
    else:
        raise UnknownNameError("engine", engine, ("simulated", "slurm"))


def _explain_simulated(
    workload: Workload, job_id: str, policy: str, at_s: float | None, *, as_json: bool
) -> None:
    """Simulate until then and explain the job, which may not have come yet, or have gone."""
    setting, jobs = workload.prepare()
    job = next((job for job in jobs if job.id == job_id), None)
    if job is None:
        raise UnknownNameError("job", job_id, [one.id for one in jobs[:5]] + ["…"])
    if at_s is None:
        history = histories(build(policy, jobs, setting, workload.seed).run())[job_id]
        started_s = history.runs[0].start_s
        at_s = started_s if started_s == history.submitted_s else started_s - 1e-3
    simulation = build(policy, jobs, setting, workload.seed)
    so_far = histories(simulation.run(until_s=at_s)).get(job_id)
    if so_far is None:
        reason = f"it arrives at {job.arrival_s:.0f} s"
        explanation = Explanation(job_id=job_id, state="not submitted", gpus=job.gpus, reason=reason)
    elif so_far.finished_s is not None:
        wait_s = so_far.wait_s
        reason = f"it finished at {so_far.finished_s:.0f} s, after {wait_s:.0f} s without GPUs"
        explanation = Explanation(
            job_id=job_id, state="finished", gpus=job.gpus, waited_s=wait_s, reason=reason
        )
    else:
        explanation = simulation.scheduler.explain(job_id, now_s=at_s)
    if as_json:
        print(json.dumps({"at_s": at_s, **msgspec.to_builtins(explanation)}, indent=1))
    else:
        Console().print(f"[dim]at {at_s:.0f} s[/dim]", highlight=False)
        _print_explanation(explanation)


def _print_explanation(explanation: Explanation, *, speed: float = 1.0) -> None:
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


app.command()(simulate)
app.command()(compare)
app.command()(explain)
app.command()(models)
app.command()(whatif)
app.command()(run)
app.command(context_settings={"allow_interspersed_args": False})(submit)
app.command()(victims)
