import pytest

from cluster import small_cluster
from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.simulated.cluster import SimulatedNetwork

MB = 1_000_000  # 2 ms on a link of the small cluster; 0.5 ms of latency at either end


def test_a_transfer_takes_its_bytes_and_both_latencies() -> None:
    network = SimulatedNetwork(small_cluster())
    assert network.send(GATEWAY, 0, MB, 1.0) == pytest.approx(1.003)
    assert network.notify(0, GATEWAY, 1.0) == pytest.approx(1.001)


def test_transfers_queue_at_the_sender_and_at_the_receiver() -> None:
    network = SimulatedNetwork(small_cluster())
    network.send(0, 1, MB, 0.0)
    assert network.send(0, 2, MB, 0.0) == pytest.approx(0.004 + 0.001), "behind the first at server 0"
    assert network.send(2, 1, MB, 0.0) == pytest.approx(0.004 + 0.001), "behind the first at server 1"
    assert network.send(1, 0, MB, 0.0) == pytest.approx(0.002 + 0.001), "out and in do not share"


def test_what_lies_there_already_need_not_move() -> None:
    assert SimulatedNetwork(small_cluster()).send(1, 1, MB, 5.0) == 5.0
