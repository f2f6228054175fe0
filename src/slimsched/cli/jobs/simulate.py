"""The commands `slim jobs simulate`, `compare`, `whatif` and `models`, and what they leave behind."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from slimsched.cli.jobs.workload import (
    DEFAULT_NETWORK,
    ModelFile,
    Network,
    Partition,
    PolicyName,
    Workload,
    policy_names,
    read_cluster_named,
    read_models,
)
from slimsched.cli.options import AsJson, file_to_write, picture, with_options
from slimsched.cli.progress import count_bar
from slimsched.core.config import ConfigError, Count, CountOrZero, PositiveSeconds, WorkerCount
from slimsched.core.log import EVENTS, LogWriter
from slimsched.jobs.domain import Job, Topology, fabric_named
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated import comparison
from slimsched.jobs.simulated.comparison import JobRow, JobSetting
from slimsched.jobs.slurm.records import read_slurm_records
from slimsched.jobs.telemetry import JobHistory, job_arrays, pass_on
from slimsched.jobs.traces.clusters import read_racks, read_slurm_conf, slurm_topology
from slimsched.jobs.traces.models import MEASURED
from slimsched.jobs.whatif import Past, Question, World, answer

# -- What a simulation of jobs leaves behind: pictures, and a folder with its figures and its log.


class Results(Struct, frozen=True, kw_only=True):
    """Where to leave pictures and the run folder, if anywhere."""

    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw the run of the first seed to a PNG.")
    ] = None
    out: Annotated[Path | None, "Leave the run in this folder, for slim report and slim replay."] = None

    def write(
        self,
        workload: Workload,
        setting: JobSetting,
        runs: Mapping[str, Mapping[str, JobHistory]],
        rows: Sequence[JobRow],
        *,
        seeds: int = 1,
    ) -> None:
        """Write what was asked for; the runs, by policy, are those of the first seed."""
        from slimsched.serving.telemetry.run_folder import About, Run, make_folder, write_run

        if not self.written():
            return
        topology = setting.topology
        config = {"trace": workload.trace, "gpus": topology.gpus, "racks": len(topology.racks)}
        left_out = ("machines", "known_models")
        config |= {key: value for key, value in msgspec.to_builtins(setting).items() if key not in left_out}
        about = About(
            kind="jobs",
            title=title_of(workload, setting),
            seed=workload.seed,
            seeds=seeds,
            config=config,
        )
        plain, arrays = [flat(row) for row in rows], job_arrays(runs, topology)
        if self.plot is not None:
            from slimsched.dashboard.pictures import job_pictures, sheet

            drawn = job_pictures(Run(about=about, rows=plain, arrays=arrays, frames=[]))
            sheet(drawn, f"{about.title}, seed {workload.seed}", self.plot)
        if self.out is not None:
            write_run(make_folder(self.out), about, plain, arrays)

    def written(self) -> list[Path]:
        """List what was written."""
        return [path for path in (self.plot, self.out) if path is not None]

    def tell(self, log: Path | None = None) -> None:
        """Say what was written, and a log with it."""
        for path in [*self.written(), *([log] if log else [])]:
            Console().print(f"written: {path}")


def title_of(workload: Workload, setting: JobSetting) -> str:
    """Say what ran on what."""
    gpus = setting.topology.gpus
    return f"{workload.trace} on {setting.cluster} ({gpus} GPUs), {setting.network}, {setting.arrivals}"


# -- Rows of job schedules as a table for people.

NARROW = 110
"""Terminals narrower than this get the main columns only."""


def print_rows(console: Console, rows: Sequence[JobRow], title: str) -> None:
    """Print one policy per row; ± is the half width of the 95 % interval over seeds."""
    console.print(f"[bold]{title}[/bold]")
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("policy", no_wrap=True)
    wide = console.width >= NARROW
    names = ["JCT mean", "makespan", "wait", "comm", "avoidable", "stops"]
    for name in names + (["p50", "p99", "GPUs held", "events/s"] if wide else []):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        s, ci = row.summary, row.ci95
        avoidable = round(s.excess_comm, 3) + 0.0  # never -0.000
        cells = [_spread(s.jct_mean_s, ci["jct_mean_s"]), _spread(s.makespan_s, ci["makespan_s"])]
        cells += [_time(s.wait_mean_s), f"{s.comm_overhead:.3f}", f"{avoidable:.3f}", f"{s.preemptions:.0f}"]
        if wide:
            cells += [_time(s.jct_p50_s), _time(s.jct_p99_s)]
            cells += [f"{100 * s.utilization:.1f} %", f"{s.events_per_wall_s:,.0f}"]
        table.add_row(s.policy + " *" * row.told_durations, *cells)
    console.print(table)
    bound = rows[0].summary
    console.print(
        f"makespan can be no shorter than {_time(bound.makespan_bound_s)} "
        f"(ideal GPU-seconds / GPUs: {_time(bound.work_bound_s)}); comm is communication over computing, "
        "avoidable the part of it that the closest placements would not have"
    )
    if any(row.told_durations for row in rows):
        console.print("* is told how long jobs take, which a real cluster cannot tell it")


def flat(row: JobRow) -> dict[str, Any]:
    """Return a row as one flat object."""
    fields = msgspec.to_builtins(row)
    return {**fields.pop("summary"), **fields}


def _time(seconds: float) -> str:
    """Seconds, or hours from three hours on."""
    return f"{seconds:.1f} s" if seconds < 10800 else f"{seconds / 3600:.2f} h"


def _spread(mean: float, half_width: float) -> str:
    if not half_width:
        return _time(mean)
    scale, unit = (1.0, "s") if mean < 10800 else (3600.0, "h")
    return f"{mean / scale:.2f}±{half_width / scale:.2f} {unit}"


# -- `slim jobs models`: the training models the simulator knows.


@with_options
def models(
    model_file: ModelFile = None,
    network: Network = DEFAULT_NETWORK,
    as_json: AsJson = False,
) -> None:
    """Show compute time, exposed gradient bytes and slowdown by tier of each model.

    Examples:

      slim jobs models

      slim jobs models --model-file my-models.toml --network fast
    """
    known = read_models(model_file)
    if as_json:
        print(json.dumps([msgspec.to_builtins(model) for model in known.values()], indent=1))
        return
    fabric = fabric_named(network)
    sensitivity = Sensitivity(topology=read_cluster_named("racks-512"), fabric=fabric, models=known)
    table = Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False)
    for name in ("model", "seconds", "MB exposed", "8 GPUs in a rack", "8 GPUs across racks", "source"):
        table.add_column(name, justify="left" if name in ("model", "source") else "right")
    for model in known.values():
        _, rack, across = sensitivity.traits(Job(id="", arrival_s=0.0, gpus=8, model=model.name)).slow
        figures = (
            f"{model.compute_s:.4g}",
            f"{model.exposed_bytes / 1e6:.4g}",
            f"{rack:.2f}×",
            f"{across:.2f}×",
        )
        table.add_row(model.name, *figures, model.source)
    Console().print(table)
    Console().print(f"slowdowns against one machine, the {network} network to itself")


# -- `slim jobs compare`: several policies on the same jobs.

DEFAULT = "fifo,fit-first,srtf,tiresias,gandiva,themis,lwf,a-srpt,dally"
WINDOWS = 4
"""Generated jobs per job of a window, so that every seed finds a window of its own."""


class ComparedWorkload(Workload, frozen=True, kw_only=True):
    """A workload under one or several networks and kinds of arrivals."""

    network: Annotated[str, "fast, oversubscribed, congested; comma-separated."] = DEFAULT_NETWORK
    arrivals: Annotated[str, "trace, batch, poisson; comma-separated."] = "trace"
    jobs: Annotated[CountOrZero, "Jobs to take from the trace, in a row; 0 takes all."] = 3000


@with_options
def compare(
    workload: ComparedWorkload,
    results: Results,
    policies: Annotated[
        str,
        typer.Option(
            "--policies",
            show_default=False,
            help=f"Separated by commas, of those above; by default {DEFAULT.replace(',', ', ')}.",
        ),
    ] = DEFAULT,
    seeds: Annotated[Count, "Windows and model assignments; means and 95 % intervals."] = 1,
    workers: Annotated[WorkerCount, "Processes; 0: one per core."] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare policies on the same jobs.

    Policies: fifo, backfill, fit-first, srtf, srsf, tiresias, gandiva, max-min, themis, lwf, a-srpt,
    scored, elastic and sia (both may give a job fewer or more GPUs than it asks for), dally, its ablations
    no-wait, fully-consolidated, mean-tuner and manual:machine_s=SECONDS:rack_s=SECONDS. A policy of your
    own is FILE.py:Class, or the name of an entry point of an installed package.

    Examples:

      slim jobs compare --trace helios --network congested --seeds 5 --json

      slim jobs compare --policies tiresias,dally --arrivals batch,poisson --network fast,congested

      slim jobs compare --policies manual:machine_s=43200:rack_s=86400,dally --plot compare.png

      slim jobs compare --policies dally,my_policy.py:MyPolicy --jobs 500

      slim jobs compare --jobs 500 --out runs/policies && slim report runs/policies
    """
    names = policy_names(policies)
    topology = workload.topology()
    settings = workload.settings(topology)
    trace = workload.read_jobs(topology, windows=WINDOWS)
    with count_bar("simulating", len(names) * seeds * len(settings), quiet=as_json) as bar:
        done = lambda name: bar.update(bar.task_ids[0], advance=1, description=f"{name} done")  # noqa: E731
        cores = workers or os.cpu_count() or 1
        rows = comparison.compare(
            trace, names, settings, seed=workload.seed, seeds=seeds, workers=cores, progress=done
        )
    if results.written():
        first, seed = settings[0], workload.seed
        prepared = comparison.prepare(trace, first, seed)  # the first seed once more, for its pictures
        runs = {name: comparison.simulate(name, prepared, first, seed)[1] for name in names}
        results.write(workload, first, runs, rows[: len(names)], seeds=seeds)
    if as_json:
        print(json.dumps([flat(row) for row in rows], indent=1))
        return
    for i, setting in enumerate(settings):
        title = f"{workload.trace} on {topology.name}, {setting.network}, {setting.arrivals}, {seeds} seeds"
        print_rows(Console(), rows[i * len(names) : (i + 1) * len(names)], title)
    results.tell()


# -- `slim jobs simulate`: one policy on one trace.

REPORT_EVERY = 64
"""Finished jobs between two updates of the bar."""


@with_options
def simulate(
    workload: Workload,
    results: Results,
    policy: PolicyName = "dally",
    log: Annotated[
        Path | None, typer.Option("--log", callback=file_to_write, help="Write the event log to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one policy on a trace.

    With --out the folder also holds the event log: slim replay checks every decision in it.

    Examples:

      slim jobs simulate --trace generated --jobs 3000 --policy dally

      slim jobs simulate --trace tiresias --policy fifo --gpus 16

      slim jobs simulate --trace my_sacct.txt --cluster my_racks.csv --network oversubscribed --plot run.png

      slim jobs simulate --jobs 500 --out runs/dally && slim report runs/dally
    """
    setting, jobs = workload.prepare()
    with count_bar(f"{policy} on {workload.trace}", len(jobs), quiet=as_json) as bar:

        def finished(count: int) -> None:
            if count % REPORT_EVERY == 0:
                bar.update(bar.task_ids[0], completed=count)

        summary, histories, entries = comparison.simulate(policy, jobs, setting, workload.seed, finished)
    row = comparison.average([summary], network=setting.network, arrivals=setting.arrivals)
    results.write(workload, setting, {policy: histories}, [row])
    for path in [*([results.out / EVENTS] if results.out else []), *([log] if log else [])]:
        with LogWriter(path, setting.scheduler_setting(policy).header()) as writer:
            pass_on(entries, writer)
    if as_json:
        told = {"network": row.network, "arrivals": row.arrivals, "told_durations": row.told_durations}
        print(json.dumps({**msgspec.to_builtins(row.summary), **told}, indent=1))
        return
    print_rows(Console(), [row], title_of(workload, setting))
    results.tell(log)


# -- `slim jobs whatif`: a cluster's own past under other policies, racks and networks.

ONE_RACK = "one"


class OwnCluster(Struct, frozen=True, kw_only=True):
    """Slurm's own files about a cluster and its past."""

    sacct: Annotated[Path, "Output of sacct --parsable2, or of squeue --json --states=all."]
    nodes: Annotated[Path, "slurm.conf: machines, GPUs, partitions, scheduler."]
    topology: Annotated[Path | None, "topology.conf: its leaf switches are the racks."] = None
    partition: Partition = None
    days: Annotated[PositiveSeconds, "Jobs of the last N days count in figures."] = 30.0
    present: Annotated[str | None, "The policy that stands for today's; else by SchedulerType."] = None

    def read(self) -> tuple[Past, str, dict[str, int]]:
        """Return the past, the policy that stands for the present, and what was left out, by reason."""
        files = read_slurm_conf(self.nodes)
        machines = files.machines_of(self.partition)
        racks = dict.fromkeys(machines, ONE_RACK) if self.topology is None else read_racks(self.topology)
        records = read_slurm_records(self.sacct, partition=self.partition)
        past = Past(
            records.jobs, slurm_topology(machines, racks, self.partition or "your cluster"), days=self.days
        )
        if not past.counted:
            raise ConfigError(
                f"{self.sacct} has no finished job that fits these machines in its last {self.days:g} days; "
                "check --nodes, --partition and --days"
            )
        return past, self.present or files.policy, {**records.left_out, "too large": past.too_large}


class Alternatives(Struct, frozen=True, kw_only=True):
    """What to try instead, and what to assume about jobs."""

    policies: Annotated[str, "Policies to try; users and sizes are shown for the last."] = (
        "fit-first,tiresias,dally"
    )
    also: Annotated[list[Path] | None, "Another topology.conf to try; repeat it for more."] = None
    network: Network = DEFAULT_NETWORK
    models: Annotated[str | None, "Models that jobs without one draw from, or none: no traffic."] = None
    model_file: ModelFile = None
    seeds: Annotated[Count, "Draws of the models that nobody names."] = 3

    def question(self, topology: Topology, present: str) -> Question:
        """Put it together; names are checked."""
        names = policy_names(self.policies)
        for name in (present, *names):
            POLICIES.make(name)
        fabric_named(self.network)
        return Question(
            present=present,
            policies=names,
            worlds=self._worlds(topology),
            models=tuple(self.models.split(",")) if self.models else MEASURED,
            setting=JobSetting(
                machines=topology.machines,
                cluster=topology.name,
                network=self.network,
                known_models=read_models(self.model_file),
            ),
            seeds=self.seeds,
        )

    def _worlds(self, topology: Topology) -> tuple[World, ...]:
        """Other racks given by the user, all machines in one rack, and a fast network."""
        machines = {machine.name: machine.gpus for machine in topology.machines}
        worlds = [
            World(
                name=path.name,
                machines=slurm_topology(machines, read_racks(path), path.name).machines,
                network=self.network,
            )
            for path in self.also or ()
        ]
        if len(topology.racks) > 1:
            flat = slurm_topology(machines, dict.fromkeys(machines, ONE_RACK), "one rack").machines
            worlds.append(World(name="one rack", machines=flat, network=self.network))
        if self.network != "fast":
            worlds.append(World(name="fast network", machines=topology.machines, network="fast"))
        return tuple(worlds)


@with_options
def whatif(
    cluster: OwnCluster,
    alternatives: Alternatives,
    out: Annotated[Path, typer.Option("--out", callback=file_to_write, help="The page to write.")] = Path(
        "whatif.html"
    ),
    as_json: AsJson = False,
) -> None:
    """Say what other policies, racks and networks would have done with your own cluster's last month.

    First it checks that the simulated present agrees with the records. The model of a job comes from its
    comment (slim jobs submit --model) or from a word of its name; the others draw one.

    Examples:

      slim jobs whatif --sacct sacct.txt --nodes /etc/slurm/slurm.conf --topology /etc/slurm/topology.conf

      slim jobs whatif --sacct sacct.txt --nodes slurm.conf --models bert --policies backfill,dally --json
    """
    from slimsched.dashboard.whatif_page import in_short, whatif_page

    past, present, left_out = cluster.read()
    question = alternatives.question(past.topology, present)
    with count_bar("simulating", question.runs, quiet=as_json) as bar:
        show = lambda text: bar.update(bar.task_ids[0], advance=1, description=text)  # noqa: E731
        found = answer(past, question, left_out, show)
    out.write_text(whatif_page(found), encoding="utf-8")
    if as_json:
        verdict = {"differences": found.differences(), "agrees": found.agrees()}
        print(json.dumps({**msgspec.to_builtins(found), **verdict}, indent=1))
        return
    for line in in_short(found):
        Console().print(line, highlight=False)
    Console().print(f"written: {out}", highlight=False)
