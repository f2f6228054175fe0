"""Room on a device: measured memory and utilization decide what may be loaded, profiles fill the gaps."""

from cluster import MEGABYTE, MODEL, choice, flat_profile
from slimsched.serving.scheduler.messages import TelemetrySampled
from slimsched.serving.scheduler.scheduler import Instances, Room, SchedulerOptions

PLACE = (0, 0, choice(0.5))


def room(cap: int = 4 * MEGABYTE, block: float = 0.95) -> tuple[Room, Instances]:
    """A room, and a fleet with one instance of a megabyte that is loaded."""
    fleet = Instances([MODEL])
    assert flat_profile().instance_bytes[PLACE] == MEGABYTE
    fleet.step(fleet.add(PLACE, MEGABYTE, 0.0).id, "loaded", 0.0)
    return Room(SchedulerOptions(vram_cap_bytes=cap, utilization_block=block)), fleet


def asked(held: int, *, free: int | None = None, utilization: float = 0.0) -> TelemetrySampled:
    return TelemetrySampled(
        utilization=utilization, power_w=0.0, vram_bytes=held, measured=True, free_bytes=free
    )


def test_measured_memory_counts_instead_of_the_sum_of_profiles() -> None:
    space, fleet = room()
    assert space.refusal(fleet, MEGABYTE) is None
    space.note(asked(3 * MEGABYTE + 1), fleet)
    refusal = space.refusal(fleet, MEGABYTE)
    assert refusal is not None
    assert refusal.cause == "memory"
    assert refusal.values == (3 * MEGABYTE + 1, MEGABYTE, 4 * MEGABYTE)
    space.note(TelemetrySampled(utilization=0.0, power_w=0.0, vram_bytes=9 * MEGABYTE), fleet)
    assert space.refusal(fleet, MEGABYTE) is None, "nobody measured that"


def test_what_was_loaded_since_the_reading_counts_by_its_profile() -> None:
    space, fleet = room()
    space.note(asked(2 * MEGABYTE), fleet)
    assert space.refusal(fleet, MEGABYTE) is None
    fleet.add(PLACE, MEGABYTE, 0.0)
    assert space.refusal(fleet, MEGABYTE) is None, "2 measured, 1 loading, 1 more"
    fleet.add(PLACE, MEGABYTE, 0.0)
    assert space.refusal(fleet, MEGABYTE) is not None


def test_what_was_unloaded_since_the_reading_no_longer_counts() -> None:
    space, fleet = room()
    space.note(asked(4 * MEGABYTE), fleet)
    second = fleet.add(PLACE, MEGABYTE, 0.0).id
    for step in ("loaded", "unload", "unloaded"):
        fleet.step(second, step, 0.0)
    assert space.refusal(fleet, MEGABYTE) is not None
    fleet.step(1, "unload", 0.0)
    fleet.add(PLACE, 0, 0.0)
    fleet.step(1, "unloaded", 0.0)
    assert space.refusal(fleet, MEGABYTE) is None


def test_an_empty_server_may_load_whatever_the_process_itself_holds() -> None:
    space, fleet = room()
    space.note(asked(9 * MEGABYTE), fleet)
    fleet.step(1, "unload", 0.0)
    fleet.step(1, "unloaded", 0.0)
    assert space.refusal(fleet, MEGABYTE) is None


def test_nothing_is_loaded_that_the_device_has_no_memory_for() -> None:
    space, fleet = room(cap=100 * MEGABYTE)
    space.note(asked(MEGABYTE, free=2 * MEGABYTE - 1), fleet)
    assert space.refusal(fleet, MEGABYTE) is None
    fleet.add(PLACE, MEGABYTE, 0.0)
    refusal = space.refusal(fleet, MEGABYTE)
    assert refusal is not None
    assert refusal.reason.format(*refusal.values) == "VRAM: 999999 bytes free, 1000000 needed"


def test_a_device_may_hold_no_more_instances_than_it_has_places_for() -> None:
    _, fleet = room()
    space = Room(SchedulerOptions(instance_limit=2))
    assert space.refusal(fleet, MEGABYTE) is None
    fleet.add(PLACE, MEGABYTE, 0.0)
    refusal = space.refusal(fleet, MEGABYTE)
    assert refusal is not None
    assert refusal.reason.format(*refusal.values) == "2 instances are loaded, the limit is 2"


def test_refusals_are_counted_by_their_cause() -> None:
    space, fleet = room(block=0.6)
    space.note(asked(0, utilization=0.61), fleet)
    for _ in range(2):
        space.refusal(fleet, MEGABYTE)
    space.refusal(fleet, 9 * MEGABYTE)
    assert space.refused == {"utilization": 2, "memory": 1}
