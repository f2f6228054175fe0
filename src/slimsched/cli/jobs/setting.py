"""Options that choose a trace, a cluster and a network, shared by the commands that simulate jobs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slimsched.kernel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimsched.jobs.domain.job import Job
    from slimsched.jobs.domain.topology import Topology
    from slimsched.jobs.execution.simulated.comparison import JobSetting
    from slimsched.jobs.telemetry.runs import JobHistory

Trace = Annotated[
    str,
    typer.Option(
        "--trace",
        help="helios, tiresias (from the data folder), generated, or a CSV "
        "(Helios, Philly, PAI, Tiresias, sacct; ARCHIVE.tar.gz#FILE).",
    ),
]
Data = Annotated[Path | None, typer.Option("--data", envvar="SLIM_DATA", help="The data folder.")]
Cluster = Annotated[
    str, typer.Option("--cluster", help="A shipped cluster (racks-512, racks-64, tiresias-16) or a file.")
]
Gpus = Annotated[
    int | None, typer.Option("--gpus", help="A flat pool of so many GPUs instead: counted, not placed.")
]
Network = Annotated[str, typer.Option("--network", help="fast, oversubscribed or congested.")]
Arrivals = Annotated[
    str, typer.Option("--arrivals", help="trace (as recorded), batch (all at once) or poisson.")
]
Load = Annotated[float, typer.Option("--load", help="Offered load of poisson arrivals, 1 being all GPUs.")]
Jobs = Annotated[
    int, typer.Option("--jobs", help="Jobs in the window taken from the trace; 0: the whole trace.", min=0)
]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same window, models and log.")]
Failures = Annotated[
    float, typer.Option("--failures", help="Failures of a machine a day, each repaired in an hour.", min=0)
]
Quota = Annotated[list[str] | None, typer.Option("--quota", help="TENANT=GPUS; may be given again.")]
Models = Annotated[
    str | None,
    typer.Option(
        "--models", help="Models that jobs without one draw from, comma-separated; see `slim jobs models`."
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Leave the run in this folder, for slim report.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]

GENERATED_JOBS = 5000


def read_trace(trace: str, data: Path | None, seed: int, jobs: int, topology: "Topology") -> "list[Job]":
    """The jobs of a trace, or generated ones that fit the cluster."""
    from slimsched.jobs.traces.trace import locate_trace, read_job_trace

    if trace == "generated":
        import numpy as np

        from slimsched.jobs.traces.generator import generate_jobs

        return generate_jobs(jobs or GENERATED_JOBS, np.random.default_rng(seed), largest=topology.gpus)
    return read_job_trace(locate_trace(trace, data))


def read_topology(cluster: str, gpus: int | None) -> "Topology":
    """The cluster named, or a flat pool."""
    from slimsched.jobs.domain.topology import Topology
    from slimsched.jobs.traces.cluster_file import read_cluster
    from slimsched.serving.execution.scenario_file import CONFIGS

    if gpus is not None:
        if gpus < 1:
            raise ConfigError(f"--gpus is {gpus}; give 1 or more")
        return Topology.pool(gpus)
    shipped = CONFIGS / "clusters" / f"{cluster}.toml"
    return read_cluster(shipped if shipped.is_file() else Path(cluster))


def read_quotas(quota: list[str] | None) -> dict[str, int]:
    """Read 'alice=64'."""
    found: dict[str, int] = {}
    for text in quota or ():
        tenant, _, gpus = text.partition("=")
        if not tenant or not gpus.isdigit():
            raise ConfigError(f"quota '{text}' is not of the form TENANT=GPUS, such as alice=64")
        found[tenant] = int(gpus)
    return found


def make_setting(
    topology: "Topology",
    *,
    network: str,
    arrivals: str,
    load: float,
    jobs: int,
    failures: float,
    quota: list[str] | None,
    models: str | None,
) -> "JobSetting":
    """All that a simulation depends on besides trace, policy and seed."""
    from slimsched.jobs.domain.fabric import fabric_named
    from slimsched.jobs.execution.simulated.comparison import JobSetting
    from slimsched.jobs.traces.known_models import MEASURED
    from slimsched.jobs.traces.window import ARRIVALS
    from slimsched.kernel.errors import UnknownNameError

    fabric_named(network)
    if arrivals not in ARRIVALS:
        raise UnknownNameError("kind of arrivals", arrivals, ARRIVALS)
    return JobSetting(
        machines=topology.machines,
        cluster=topology.name,
        network=network,
        arrivals=arrivals,
        load=load,
        jobs=jobs,
        failures_per_machine_day=failures,
        quotas=read_quotas(quota),
        models=tuple(models.split(",")) if models else MEASURED,
    )


def leave_run(
    folder: Path,
    trace: str,
    setting: "JobSetting",
    seed: int,
    rows: list[dict[str, Any]],
    found: "Mapping[str, Mapping[str, JobHistory]]",
    seeds: int = 1,
) -> None:
    """Write a run folder; pictures are of the first seed."""
    import msgspec

    from slimsched.jobs.telemetry.arrays import job_arrays
    from slimsched.serving.telemetry.run_folder import About, make_folder, write_run

    topology = setting.topology
    config = {"trace": trace, "gpus": topology.gpus, "racks": len(topology.racks)}
    config |= {name: value for name, value in msgspec.to_builtins(setting).items() if name != "machines"}
    title = f"{trace} on {topology.name} ({topology.gpus} GPUs), {setting.network}, {setting.arrivals}"
    about = About(kind="jobs", title=title, seed=seed, seeds=seeds, config=config)
    write_run(make_folder(folder), about, rows, job_arrays(found, topology))
