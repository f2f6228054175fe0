"""How full the racks were over time, from the histories of jobs."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.telemetry.runs import JobHistory

BINS = 300


def rack_occupancy(
    found: Mapping[str, JobHistory], topology: Topology
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges of the time bins in seconds, and the share of each rack's GPUs held (racks, bins)."""
    end_s = max((run.end_s for history in found.values() for run in history.runs), default=1.0)
    edges_s = np.linspace(0.0, end_s, BINS + 1)
    change = np.zeros((len(topology.racks), BINS + 1))
    for history in found.values():
        for run in history.runs:
            first, last = np.searchsorted(edges_s, (run.start_s, run.end_s), side="right") - 1
            for name, gpus in run.placement:
                rack = topology.rack_of_name[name]
                change[rack, first] += gpus
                change[rack, min(int(last), BINS)] -= gpus
    return edges_s, np.cumsum(change, axis=1)[:, :BINS] / np.array(topology.rack_gpus)[:, None]
