"""Servers that share a GPU slow each other down while both are busy, and nobody else."""

import pytest
from msgspec.structs import replace

from slimsched.serving.domain.host import Host
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.execution.simulated.crowding import Crowding
from slimsched.serving.execution.simulated.simulation import simulate

GPU, OTHER_GPU, CPU = Host(kind="cuda"), Host(kind="cuda", gpu=1), Host(kind="cpu")


def test_only_servers_of_one_gpu_are_neighbours() -> None:
    crowding = Crowding([GPU, OTHER_GPU, GPU, CPU, None], (1.5,))
    assert [crowding.neighbours(server) for server in range(5)] == [[0, 2], [1], [0, 2], [], []]


def test_the_last_figure_holds_for_more_neighbours_than_were_measured() -> None:
    crowding = Crowding([GPU] * 4, (1.2, 1.6))
    assert [crowding.slowdown(busy) for busy in range(4)] == [1.0, 1.2, 1.6, 1.6]


def test_a_cluster_on_one_gpu_is_slower_when_its_servers_work_at_once() -> None:
    alone = load_scenario("paper").with_load(rate_per_s=2000.0, seconds=1.0)
    alone = replace(alone, hosts=(GPU,) * len(alone.cluster))
    crowded = replace(alone, neighbours_slowdown=(1.3, 1.5))
    before, after = (simulate(one, "random", drain=True).summary.latency_mean_s for one in (alone, crowded))
    assert after > 1.05 * before
    unshared = replace(crowded, hosts=(None,) * len(alone.cluster))
    assert simulate(unshared, "random", drain=True).summary.latency_mean_s == pytest.approx(before)
