"""What pictures of job schedules need, as arrays for a run folder."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.telemetry.occupancy import rack_occupancy
from slimsched.jobs.telemetry.runs import JobHistory


def job_arrays(runs: Mapping[str, Mapping[str, JobHistory]], topology: Topology) -> dict[str, NDArray[Any]]:
    """Completion times and rack occupancy of each policy, by row number."""
    arrays: dict[str, NDArray[Any]] = {}
    for row, found in enumerate(runs.values()):
        jct_s = [history.jct_s for history in found.values() if history.finished_s is not None]
        edges_s, held = rack_occupancy(found, topology)
        arrays[f"{row}/jct_s"] = np.sort(np.array(jct_s, dtype=np.float64))
        arrays[f"{row}/edges_s"] = edges_s
        arrays[f"{row}/held"] = held.astype(np.float32)
    return arrays
