"""What pictures of job schedules need, as arrays: completion times, and how full the racks were over time."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.telemetry.runs import JobHistory

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
