"""The load gate: measured memory and utilization decide what may be loaded, profiles fill the gaps."""

from cluster import MEGABYTE, MODEL, choice, flat_profile
from slimsched.serving.scheduler.scheduler import Instances, LoadGate, SchedulerOptions, TelemetrySampled

PLACE = (0, 0, choice(0.5))


def gate_of(cap: int = 4 * MEGABYTE, block: float = 0.95) -> tuple[LoadGate, Instances]:
    """A load gate, and the instances of a device: one of a megabyte that is loaded."""
    instances = Instances([MODEL])
    assert flat_profile().instance_bytes[PLACE] == MEGABYTE
    instances.step(instances.add(PLACE, MEGABYTE, 0.0).id, "loaded", 0.0)
    return LoadGate(SchedulerOptions(vram_cap_bytes=cap, utilization_block=block)), instances


def asked(held: int, *, free: int | None = None, utilization: float = 0.0) -> TelemetrySampled:
    return TelemetrySampled(
        utilization=utilization, power_w=0.0, vram_bytes=held, measured=True, free_bytes=free
    )


def test_measured_memory_counts_instead_of_the_sum_of_profiles() -> None:
    gate, instances = gate_of()
    assert gate.refusal(instances, MEGABYTE) is None
    gate.note(asked(3 * MEGABYTE + 1), instances)
    refusal = gate.refusal(instances, MEGABYTE)
    assert refusal is not None
    assert refusal.cause == "memory"
    assert refusal.values == (3 * MEGABYTE + 1, MEGABYTE, 4 * MEGABYTE)
    gate.note(TelemetrySampled(utilization=0.0, power_w=0.0, vram_bytes=9 * MEGABYTE), instances)
    assert gate.refusal(instances, MEGABYTE) is None, "nobody measured that"


def test_what_was_loaded_since_the_reading_counts_by_its_profile() -> None:
    gate, instances = gate_of()
    gate.note(asked(2 * MEGABYTE), instances)
    assert gate.refusal(instances, MEGABYTE) is None
    instances.add(PLACE, MEGABYTE, 0.0)
    assert gate.refusal(instances, MEGABYTE) is None, "2 measured, 1 loading, 1 more"
    instances.add(PLACE, MEGABYTE, 0.0)
    assert gate.refusal(instances, MEGABYTE) is not None


def test_what_was_unloaded_since_the_reading_no_longer_counts() -> None:
    gate, instances = gate_of()
    gate.note(asked(4 * MEGABYTE), instances)
    second = instances.add(PLACE, MEGABYTE, 0.0).id
    for step in ("loaded", "unload", "unloaded"):
        instances.step(second, step, 0.0)
    assert gate.refusal(instances, MEGABYTE) is not None
    instances.step(1, "unload", 0.0)
    instances.add(PLACE, 0, 0.0)
    instances.step(1, "unloaded", 0.0)
    assert gate.refusal(instances, MEGABYTE) is None


def test_an_empty_server_may_load_whatever_the_process_itself_holds() -> None:
    gate, instances = gate_of()
    gate.note(asked(9 * MEGABYTE), instances)
    instances.step(1, "unload", 0.0)
    instances.step(1, "unloaded", 0.0)
    assert gate.refusal(instances, MEGABYTE) is None


def test_nothing_is_loaded_that_the_device_has_no_memory_for() -> None:
    gate, instances = gate_of(cap=100 * MEGABYTE)
    gate.note(asked(MEGABYTE, free=2 * MEGABYTE - 1), instances)
    assert gate.refusal(instances, MEGABYTE) is None
    instances.add(PLACE, MEGABYTE, 0.0)
    refusal = gate.refusal(instances, MEGABYTE)
    assert refusal is not None
    assert refusal.reason.format(*refusal.values) == "VRAM: 999999 bytes free, 1000000 needed"


def test_a_device_may_hold_no_more_instances_than_it_has_places_for() -> None:
    _, instances = gate_of()
    gate = LoadGate(SchedulerOptions(instance_limit=2))
    assert gate.refusal(instances, MEGABYTE) is None
    instances.add(PLACE, MEGABYTE, 0.0)
    refusal = gate.refusal(instances, MEGABYTE)
    assert refusal is not None
    assert refusal.reason.format(*refusal.values) == "2 instances are loaded, the limit is 2"


def test_refusals_are_counted_by_their_cause() -> None:
    gate, instances = gate_of(block=0.6)
    gate.note(asked(0, utilization=0.61), instances)
    for _ in range(2):
        gate.refusal(instances, MEGABYTE)
    gate.refusal(instances, 9 * MEGABYTE)
    assert gate.refused == {"utilization": 2, "memory": 1}
