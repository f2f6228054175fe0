"""Figures of independent code: Tiresias' simulator and ASTRA-sim."""

import pytest

from jobs.workloads import data_folder, needs_data, simulation
from slimsched.jobs.domain import Fabric, Topology
from slimsched.jobs.policies.baselines import FifoPolicy
from slimsched.jobs.scheduler.network import Shape, comm_times
from slimsched.jobs.telemetry import histories
from slimsched.jobs.traces.jobs import locate_trace, read_job_trace

GB, MB = 1e9, 1e6


@pytest.mark.data
@needs_data
def test_tiresias_60_job_trace_under_strict_fifo_gives_its_published_figures() -> None:
    jobs = read_job_trace(locate_trace("tiresias", data_folder()))
    found = histories(simulation(FifoPolicy(), jobs, Topology.pool(16)).run()).values()
    assert len(found) == 60
    assert round(sum(one.jct_s for one in found) / 60, 2) == 200.82
    assert max(one.finished_s for one in found) == 3335
    assert round(sum(one.wait_s for one in found) / 60, 2) == 22.40


@pytest.mark.parametrize(
    ("shape", "nic_gb", "uplink_gb", "ms_102_mb", "ms_1360_mb"),
    [
        (Shape(8), 12.5, 12.5, 0.778, 9.676),
        (Shape(4, 2), 12.5, 12.5, 2.117, 27.75),
        (Shape(1, 8), 12.5, 12.5, 13.69, 179.8),
        (Shape(1, 1, 8), 12.5, 3.125, 53.9, 712.0),
        (Shape(2, 2, 2), 12.5, 6.25, 8.78, 115.9),
    ],
    ids=["one machine", "two machines", "eight machines", "oversubscribed", "two racks"],
)
def test_all_reduce_is_within_15_percent_of_astra_sim(
    shape, nic_gb, uplink_gb, ms_102_mb, ms_1360_mb
) -> None:
    """One network card per GPU, as in ASTRA-sim; the last two cases cross racks."""
    fabric = Fabric(name="astra", rails=True, nic_bytes_per_s=nic_gb * GB, uplink_bytes_per_s=uplink_gb * GB)
    for size_bytes, expected_ms in ((102 * MB, ms_102_mb), (1360 * MB, ms_1360_mb)):
        times = comm_times(size_bytes, shape, fabric, machines_per_rack=shape.machines)
        assert 1e3 * times.total_s() == pytest.approx(expected_ms, rel=0.15)
