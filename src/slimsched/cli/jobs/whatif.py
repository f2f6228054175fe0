"""`slim jobs whatif`: a cluster's own past under other policies, racks and networks."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.jobs.workload import (
    DEFAULT_NETWORK,
    ModelFile,
    Network,
    Partition,
    policy_names,
    read_models,
)
from slimsched.cli.options import AsJson, file_to_write, with_options
from slimsched.cli.progress import count_bar
from slimsched.core.config import ConfigError, Count, PositiveSeconds
from slimsched.jobs.domain import Topology, fabric_named
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated.comparison import JobSetting
from slimsched.jobs.slurm.records import read_slurm_records
from slimsched.jobs.traces.clusters import read_racks, read_slurm_conf, slurm_topology
from slimsched.jobs.traces.models import MEASURED
from slimsched.jobs.whatif import Past, Question, World, answer

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
