"""Pictures of job schedules: completion times, makespan, communication by tier, racks over time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.jobs.domain import Topology
from slimsched.jobs.telemetry import JobHistory, JobSummary

# -- What pictures of job schedules need, as arrays: completion times, and how full the racks were over time.

BINS = 300


def job_arrays(runs: Mapping[str, Mapping[str, JobHistory]], topology: Topology) -> dict[str, NDArray[Any]]:
    """Return completion times and rack occupancy of each policy, by row number."""
    arrays: dict[str, NDArray[Any]] = {}
    for row, histories in enumerate(runs.values()):
        jct_s = [history.jct_s for history in histories.values() if history.finished_s is not None]
        edges_s, held = rack_occupancy(histories, topology)
        arrays[f"{row}/jct_s"] = np.sort(np.array(jct_s, dtype=np.float64))
        arrays[f"{row}/edges_s"] = edges_s
        arrays[f"{row}/held"] = held.astype(np.float32)
    return arrays


def rack_occupancy(
    histories: Mapping[str, JobHistory], topology: Topology
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges of the time bins in seconds, and the share of each rack's GPUs held (racks, bins)."""
    end_s = max((run.end_s for history in histories.values() for run in history.runs), default=1.0)
    edges_s = np.linspace(0.0, end_s, BINS + 1)
    change = np.zeros((len(topology.racks), BINS + 1))
    for history in histories.values():
        for run in history.runs:
            first, last = np.searchsorted(edges_s, (run.start_s, run.end_s), side="right") - 1
            for name, gpus in run.placement:
                rack = topology.rack_of_name[name]
                change[rack, first] += gpus
                change[rack, min(int(last), BINS)] -= gpus
    return edges_s, np.cumsum(change, axis=1)[:, :BINS] / np.array(topology.rack_gpus)[:, None]


class PlotError(SlimError):
    """Pictures cannot be drawn here."""


def plot_jobs(
    runs: Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]],
    topology: Topology,
    title: str,
    path: Path,
) -> None:
    """Draw the runs of one or several policies into one picture; the racks are those of the last."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        raise PlotError(
            "plots need matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
    figure.suptitle(title)
    _completion(axes[0, 0], runs)
    _makespan(axes[0, 1], runs)
    _communication(axes[1, 0], runs)
    last = list(runs)[-1]
    _racks(axes[1, 1], runs[last][1], topology, last)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _completion(axis: Any, runs: Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]]) -> None:
    for policy, (_, by_job) in runs.items():
        jct_s = np.sort([history.jct_s for history in by_job.values() if history.finished_s is not None])
        axis.plot(np.maximum(jct_s, 1.0), np.arange(1, len(jct_s) + 1) / len(jct_s), label=policy)
    axis.set(xscale="log", xlabel="job completion time (s)", ylabel="share of jobs", title="completion time")
    axis.legend(fontsize="small")


def _makespan(axis: Any, runs: Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]]) -> None:
    names = list(runs)
    axis.barh(names, [runs[name][0].makespan_s / 3600 for name in names])
    bound_h = max(runs[name][0].makespan_bound_s for name in names) / 3600
    axis.axvline(bound_h, color="black", linestyle="--", label="lower bound")
    axis.set(xlabel="makespan (h)", title="makespan")
    axis.legend(fontsize="small")


def _communication(axis: Any, runs: Mapping[str, tuple[JobSummary, Mapping[str, JobHistory]]]) -> None:
    names = list(runs)
    left = np.zeros(len(names))
    for tier in runs[names[0]][0].comm_by_tier:
        share = np.array([runs[name][0].comm_by_tier[tier] for name in names])
        axis.barh(names, share, left=left, label=tier)
        left += share
    axis.set(xlabel="communication / computing (GPU-seconds)", title="communication by tier")
    axis.legend(fontsize="small")


def _racks(axis: Any, by_job: Mapping[str, JobHistory], topology: Topology, policy: str) -> None:
    """GPUs held in each rack over time, as a picture."""
    edges_s, held = rack_occupancy(by_job, topology)
    racks = len(topology.racks)
    image = axis.imshow(
        held,
        aspect="auto",
        extent=(0.0, edges_s[-1] / 3600, racks - 0.5, -0.5),
        vmin=0.0,
        vmax=1.0,
        interpolation="nearest",  # racks are apart: no colour between two of them means anything
    )
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.hlines(np.arange(0.5, racks - 1), 0.0, edges_s[-1] / 3600, color="white", linewidth=0.8)
    axis.set(xlabel="time (h)", ylabel="rack", title=f"share of each rack's GPUs held ({policy})")
    axis.figure.colorbar(image, ax=axis)
