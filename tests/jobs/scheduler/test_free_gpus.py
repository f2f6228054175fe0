"""Free GPUs: the index agrees with looking at every machine."""

from hypothesis import given
from hypothesis import strategies as st

from slimsched.jobs.domain import Tier, Topology, gpus_in
from slimsched.jobs.scheduler.gpus import FreeGpus

TOPOLOGY = Topology.grid(racks=3, machines_per_rack=3, gpus_per_machine=4)


def test_the_fullest_machine_that_suffices_is_chosen() -> None:
    free = FreeGpus(TOPOLOGY)
    free.take((("r1m1", 2),))
    assert free.find(2, Tier.MACHINE) == (("r1m1", 2),)
    assert free.find(3, Tier.MACHINE) == (("r0m0", 3),)


def test_a_gang_larger_than_a_machine_stays_in_one_rack() -> None:
    free = FreeGpus(TOPOLOGY)
    free.take((("r0m0", 1),))
    placement = free.find(12, Tier.NETWORK)
    assert placement is not None
    assert {name[:2] for name, _ in placement} == {"r1"}


@given(
    used=st.lists(st.integers(0, 4), min_size=9, max_size=9),
    gpus=st.integers(1, 36),
    tier=st.sampled_from(list(Tier)),
)
def test_a_placement_is_found_exactly_when_one_exists_and_is_free(used, gpus, tier) -> None:
    free = FreeGpus(TOPOLOGY)
    left = [4 - taken for taken in used]
    for name, taken in zip(free.names, used, strict=True):
        if taken:
            free.take(((name, taken),))
    possible = {
        Tier.MACHINE: max(left) >= gpus,
        Tier.RACK: max(sum(left[r * 3 : r * 3 + 3]) for r in range(3)) >= gpus,
        Tier.NETWORK: sum(left) >= gpus,
    }
    placement = free.find(gpus, tier)
    assert (placement is not None) == possible[tier]
    if placement is not None:
        assert gpus_in(placement) == gpus
        assert all(0 < count <= left[free.index[name]] for name, count in placement)
        closest = next(t for t in Tier if possible[t])
        assert TOPOLOGY.tier(placement) == closest
