"""Figures of independent code: Tiresias' simulator and ASTRA-sim."""

import pytest

from jobs.workloads import data_folder, needs_data, simulation
from slimsched.jobs.domain.topology import Topology
from slimsched.jobs.scheduling.collective import ring_s
from slimsched.jobs.scheduling.policies.fifo import Fifo
from slimsched.jobs.telemetry.runs import histories
from slimsched.jobs.traces.trace import locate_trace, read_job_trace

GB, MB = 1e9, 1e6


@pytest.mark.data
@needs_data
def test_tiresias_60_job_trace_under_strict_fifo_gives_its_published_figures() -> None:
    jobs = read_job_trace(locate_trace("tiresias", data_folder()))
    found = histories(simulation(Fifo(), jobs, Topology.pool(16)).run()).values()
    assert len(found) == 60
    assert round(sum(one.jct_s for one in found) / 60, 2) == 200.82
    assert max(one.finished_s for one in found) == 3335
    assert round(sum(one.wait_s for one in found) / 60, 2) == 22.40


@pytest.mark.parametrize(
    ("dimensions", "ms_102_mb", "ms_1360_mb"),
    [
        ([(8, 300 * GB)], 0.778, 9.676),
        ([(4, 300 * GB), (2, 12.5 * GB)], 2.117, 27.75),
        ([(8, 12.5 * GB)], 13.69, 179.8),
        ([(8, 3.125 * GB)], 53.9, 712.0),
        ([(2, 300 * GB), (2, 12.5 * GB), (2, 3.125 * GB)], 8.78, 115.9),
    ],
    ids=["one machine", "two machines", "eight machines", "oversubscribed", "two racks"],
)
def test_all_reduce_is_within_15_percent_of_astra_sim(dimensions, ms_102_mb, ms_1360_mb) -> None:
    for size_bytes, expected_ms in ((102 * MB, ms_102_mb), (1360 * MB, ms_1360_mb)):
        found_ms = 1e3 * ring_s(size_bytes, dimensions, kappa=1.05, latency_s=5e-6)
        assert found_ms == pytest.approx(expected_ms, rel=0.15)
