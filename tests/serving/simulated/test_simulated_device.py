import pytest

from cluster import MODEL, block, flat_profile, key
from slimsched.serving.domain.profile import Profile, ServiceCost
from slimsched.serving.domain.request import Batch
from slimsched.serving.simulated.server import SimulatedDevice


def shared_profile() -> Profile:
    """A batch takes 1 s alone and 1.5 s beside another; it draws 6 J."""
    flat = flat_profile()
    return Profile(
        name="shared",
        source="test",
        batches=[1],
        concurrency=[1, 2],
        latency_table_s={one: [[1.0], [1.5]] for one in MODEL.keys.values()},
        energy_table_j={one: [6.0] for one in MODEL.keys.values()},
        instance_bytes=flat.instance_bytes,
        load_s=flat.load_s,
        idle_w=10.0,
        element_bytes=2,
    )


def batch(number: int) -> Batch:
    return Batch(id=number, key=key(0, 0.5), instance=number, blocks=(block(number, 1),), size=1)


def test_a_batch_alone_takes_the_profiles_time() -> None:
    device = SimulatedDevice(shared_profile())
    device.start(batch(1), 2.0)
    assert device.next_finish_s() == pytest.approx(3.0)
    assert device.finish(3.0) == (batch(1), pytest.approx(1.0), 6.0)
    assert device.next_finish_s() is None


def test_batches_slow_each_other_only_while_they_overlap() -> None:
    device = SimulatedDevice(shared_profile())
    device.start(batch(1), 0.0)
    device.start(batch(2), 0.5)  # the first has half left, at two thirds of its pace
    assert device.next_finish_s() == pytest.approx(0.5 + 0.75)
    assert device.finish(1.25)[0].id == 1
    assert device.next_finish_s() == pytest.approx(1.25 + 0.5)  # the second has half left, alone again
    assert device.finish(1.75)[0].id == 2


def test_batches_beyond_those_profiled_together_wait_their_turn() -> None:
    device = SimulatedDevice(shared_profile())
    for number in range(3):
        device.start(batch(number), 0.0)
    assert device.next_finish_s() == pytest.approx(1.5)
    assert [device.finish(1.5)[0].id, device.finish(1.5)[0].id] == [0, 1]
    assert device.finish(2.5) == (batch(2), pytest.approx(1.0), 6.0)


def test_utilization_and_power_are_those_of_the_time_since_the_last_sample() -> None:
    device = SimulatedDevice(shared_profile())
    device.sample(0.0)
    device.start(batch(1), 0.0)
    device.finish(1.0)
    utilization, power_w = device.sample(4.0)
    assert utilization == pytest.approx(0.25)
    assert power_w == pytest.approx(10.0 + 6.0 / 4)
    assert device.sample(5.0) == (0.0, pytest.approx(10.0))


def test_a_slowed_device_takes_longer_for_what_is_left() -> None:
    device = SimulatedDevice(shared_profile())
    device.start(batch(1), 0.0)
    device.slow(3.0, 0.5)
    assert device.next_finish_s() == pytest.approx(0.5 + 1.5)


def test_in_service_a_batch_takes_the_overhead_and_the_slowdown_on_top_of_its_profile() -> None:
    device = SimulatedDevice(shared_profile(), ServiceCost(slowdown=1.2, overhead_s=0.1))
    device.start(batch(1), 0.0)
    assert device.next_finish_s() == pytest.approx(0.1 + 1.2)
