"""What a simulation of jobs leaves behind: pictures, and a folder with its figures and its log."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct

from slimsched.cli.output_path import picture

if TYPE_CHECKING:
    from slimsched.cli.jobs.workload import Workload
    from slimsched.jobs.simulated.comparison import JobSetting
    from slimsched.jobs.telemetry import JobEntry, JobHistory, JobSummary

    PolicyRuns = Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]]


class Results(Struct, frozen=True, kw_only=True):
    """Where to leave pictures and the run folder, if anywhere."""

    plot: Annotated[
        Path | None, typer.Option("--plot", callback=picture, help="Draw the run of the first seed to a PNG.")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Leave the run in this folder, for slim report and slim replay."),
    ] = None

    def write(
        self,
        workload: "Workload",
        setting: "JobSetting",
        runs: "PolicyRuns",
        rows: Sequence[Mapping[str, Any]],
        *,
        seeds: int = 1,
    ) -> None:
        """Write what was asked for; the runs are those of the first seed."""
        title = f"{workload.trace} on {setting.cluster} ({setting.topology.gpus} GPUs)"
        title += f", {setting.network}, {setting.arrivals}"
        if self.plot is not None:
            from slimsched.jobs.pictures import plot_jobs

            plot_jobs(runs, setting.topology, f"{title}, seed {workload.seed}", self.plot)
        if self.out is not None:
            _write_folder(self.out, title, workload, setting, runs, rows, seeds)

    def written(self) -> list[Path]:
        """List what was written."""
        return [path for path in (self.plot, self.out) if path is not None]


def write_log(path: Path, policy: str, setting: "JobSetting", entries: "Sequence[JobEntry]") -> None:
    """Write the log of a simulated run, from which it can be replayed."""
    from slimsched.core.log import LogWriter
    from slimsched.jobs.telemetry import pass_on

    with LogWriter(path, setting.scheduler_setting(policy).header()) as log:
        pass_on(entries, log)


def _write_folder(
    folder: Path,
    title: str,
    workload: "Workload",
    setting: "JobSetting",
    runs: "PolicyRuns",
    rows: Sequence[Mapping[str, Any]],
    seeds: int,
) -> None:
    from slimsched.jobs.pictures import job_arrays
    from slimsched.serving.telemetry.run_folder import About, make_folder, write_run

    topology = setting.topology
    config = {"trace": workload.trace, "gpus": topology.gpus, "racks": len(topology.racks)}
    left_out = ("machines", "known_models")
    config |= {name: value for name, value in msgspec.to_builtins(setting).items() if name not in left_out}
    about = About(kind="jobs", title=title, seed=workload.seed, seeds=seeds, config=config)
    histories = {name: by_job for name, (_, by_job) in runs.items()}
    write_run(make_folder(folder), about, rows, job_arrays(histories, topology))
