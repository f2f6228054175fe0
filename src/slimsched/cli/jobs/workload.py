"""The options of commands that simulate jobs: which trace, on which cluster, under which network."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.options import Seed
from slimsched.core.config import ConfigError, Count, CountOrZero, Factor, FailureRate, UnknownNameError
from slimsched.jobs.domain import Job, Topology, TrainingModel, fabric_named
from slimsched.jobs.simulated.cluster import SHARINGS, Sharing
from slimsched.jobs.simulated.comparison import JobSetting, prepare
from slimsched.jobs.traces.clusters import read_cluster
from slimsched.jobs.traces.jobs import generate_jobs, locate_trace, read_job_trace
from slimsched.jobs.traces.models import ARRIVALS, MEASURED, TRAINING_MODELS, read_model_file

Data = Annotated[Path | None, typer.Option("--data", envvar="SLIM_DATA", help="The data folder.")]
Cluster = Annotated[str, "A shipped cluster (racks-512, racks-64, tiresias-16) or a file."]
Network = Annotated[str, "fast, oversubscribed or congested."]
DEFAULT_NETWORK = "congested"
"""What every command assumes unless told otherwise."""
ModelFile = Annotated[Path | None, "A TOML file with training models of your own."]
PolicyName = Annotated[str, "A policy: NAME, NAME:OPTION=VALUE, or your own as FILE.py:Class."]
Quota = Annotated[list[str] | None, "TENANT=GPUS; repeat it for further tenants."]

GENERATED_JOBS = 5000


class Workload(Struct, frozen=True, kw_only=True):
    """A trace of jobs, the cluster it runs on, and the seed of everything drawn at random."""

    trace: Annotated[
        str,
        "helios, tiresias (from the data folder), generated, or a CSV "
        "(Helios, Philly, PAI, Tiresias, sacct; ARCHIVE.tar.gz#FILE).",
    ] = "generated"
    cluster: Cluster = "racks-512"
    gpus: Annotated[Count | None, "Instead of a cluster, a flat pool of N GPUs: counted only."] = None
    network: Network = DEFAULT_NETWORK
    links: Annotated[str, "How gangs share links: fair, shifted in time, or by priority."] = "fair"
    arrivals: Annotated[str, "trace (as recorded), batch (all at once) or poisson."] = "trace"
    load: Annotated[Factor, "Offered load of poisson arrivals; 1 needs all GPUs."] = 1.0
    jobs: Annotated[CountOrZero, "Jobs to take from the trace, in a row; 0 takes all."] = 0
    seed: Seed = 0
    failures: Annotated[FailureRate, "Failures per machine and day; a repair takes an hour."] = 0.0
    quota: Quota = None
    models: Annotated[
        str | None, "Models that jobs without one draw from, comma-separated; see `slim jobs models`."
    ] = None
    model_file: ModelFile = None
    data: Data = None

    def topology(self) -> Topology:
        """Read the cluster, or make the flat pool."""
        if self.gpus is None:
            return read_cluster_named(self.cluster)
        return Topology.pool(self.gpus)

    def settings(self, topology: Topology) -> list[JobSetting]:
        """Make a setting of each network with each kind of arrivals; several are separated by commas."""
        return [
            self._setting(topology, network, arrivals)
            for network in self.network.split(",")
            for arrivals in self.arrivals.split(",")
        ]

    def read_jobs(self, topology: Topology, *, windows: int = 1) -> list[Job]:
        """Read the trace, or generate jobs that fit the cluster: enough for several windows."""
        if self.trace == "generated":
            count = windows * self.jobs or GENERATED_JOBS
            return generate_jobs(count, np.random.default_rng(self.seed), largest=topology.gpus)
        jobs = read_job_trace(locate_trace(self.trace, self.data))
        warn_of_unknown_models(jobs, read_models(self.model_file))
        return jobs

    def prepare(self) -> tuple[JobSetting, list[Job]]:
        """Make the one setting, and the jobs of the seed."""
        topology = self.topology()
        setting, *others = self.settings(topology)
        if others:
            raise ConfigError("one run has one network and one kind of arrivals; slim jobs compare has more")
        return setting, prepare(self.read_jobs(topology), setting, self.seed)

    def _setting(self, topology: Topology, network: str, arrivals: str) -> JobSetting:
        fabric_named(network)
        if self.links not in SHARINGS:
            raise UnknownNameError("way to share links", self.links, SHARINGS)
        if arrivals not in ARRIVALS:
            raise UnknownNameError("kind of arrivals", arrivals, ARRIVALS)
        return JobSetting(
            machines=topology.machines,
            cluster=topology.name,
            network=network,
            sharing=cast(Sharing, self.links),
            arrivals=arrivals,
            load=self.load,
            jobs=self.jobs,
            failures_per_machine_day=self.failures,
            quotas=read_quotas(self.quota),
            models=tuple(self.models.split(",")) if self.models else MEASURED,
            known_models=read_models(self.model_file),
        )


def read_cluster_named(cluster: str) -> Topology:
    """Read a shipped cluster, or one from a file."""
    from slimsched.serving.scenario.files import CONFIGS

    shipped = CONFIGS / "clusters" / f"{cluster}.toml"
    return read_cluster(shipped if shipped.is_file() else Path(cluster))


def read_models(model_file: Path | None) -> dict[str, TrainingModel]:
    """Return the models we know, and those of a file."""
    return TRAINING_MODELS if model_file is None else read_model_file(model_file)


def warn_of_unknown_models(jobs: Iterable[Job], known: Mapping[str, TrainingModel]) -> None:
    """Say which models of a trace nobody has measured: their jobs cost no communication at all."""
    unknown = Counter(job.model for job in jobs if job.model and job.model not in known)
    if unknown:
        names = ", ".join(name for name, _ in unknown.most_common(5)) + (", …" if len(unknown) > 5 else "")
        count = unknown.total()
        who = "1 job trains a model that is" if count == 1 else f"{count} jobs train models that are"
        Console(stderr=True).print(
            f"[yellow]{who} not known ({names}), and will count as never communicating; "
            "describe models with --model-file, see slim jobs models[/yellow]",
            highlight=False,
            soft_wrap=True,
        )


def policy_names(policies: str) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    names = tuple(name.strip() for name in policies.split(",") if name.strip())
    if not names:
        raise ConfigError("no policy given; name some with --policies, such as tiresias,dally")
    return names


def read_quotas(quota: list[str] | None) -> dict[str, int]:
    """Read texts such as 'alice=64'."""
    quotas: dict[str, int] = {}
    for text in quota or ():
        tenant, _, gpus = text.partition("=")
        if not tenant or not (gpus.isascii() and gpus.isdecimal() and len(gpus) <= 9):
            raise ConfigError(f"quota '{text}' is not of the form TENANT=GPUS, such as alice=64")
        quotas[tenant] = int(gpus)
    return quotas


# -- The options of commands that look at or drive a Slurm.

Conf = Annotated[Path | None, "The cluster's slurm.conf; else SLURM_CONF or /etc/slurm."]
Partition = Annotated[str | None, "Only this partition's jobs and machines."]

Speed = Annotated[Factor, "Scheduler's seconds per second; above 1 for demos."]


class SlurmOptions(Struct, frozen=True, kw_only=True):
    """Which Slurm, and how it is scheduled."""

    policy: PolicyName = "dally"
    network: Network = DEFAULT_NETWORK
    partition: Partition = None
    quota: Quota = None
    speed: Speed = 1.0
    model_file: ModelFile = None
    conf: Conf = None
