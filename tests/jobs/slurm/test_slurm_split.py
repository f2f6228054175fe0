"""How a gang is shared out over the machines chosen for it."""

from hypothesis import given
from hypothesis import strategies as st

from slimsched.jobs.domain import Placement, Topology, gpus_in
from slimsched.jobs.scheduler.gpus import FreeGpus, split
from slimsched.jobs.slurm.wire import place_arguments


def free_gpus(*free: int) -> FreeGpus:
    gpus = FreeGpus(Topology.grid(racks=1, machines_per_rack=len(free), gpus_per_machine=8))
    gpus.take(tuple((gpus.names[i], 8 - count) for i, count in enumerate(free)))
    return gpus


def test_equal_shares_where_there_is_room() -> None:
    placement: Placement = (("r0m0", 5), ("r0m1", 7))
    assert split("1", placement, free_gpus(8, 7)) == (("r0m0", 6), ("r0m1", 6))


def test_else_machine_by_machine_in_order_as_slurm_fills_them() -> None:
    placement: Placement = (("r0m2", 8), ("r0m0", 2), ("r0m1", 2))
    assert split("1", placement, free_gpus(2, 4, 8)) == (("r0m0", 2), ("r0m1", 4), ("r0m2", 6))


@given(st.lists(st.integers(1, 8), min_size=2, max_size=8), st.data())
def test_a_split_keeps_machines_and_gpus_and_fits(free: list[int], data: st.DataObject) -> None:
    gpus = free_gpus(*free)
    total = data.draw(st.integers(len(free), sum(free)))
    parts = split("1", tuple(zip(gpus.names, _any_shares(total, free), strict=True)), gpus)
    assert [name for name, _ in parts] == gpus.names
    assert gpus_in(parts) == total
    assert all(1 <= count <= room for (_, count), room in zip(parts, free, strict=True))


def _any_shares(total: int, free: list[int]) -> list[int]:
    shares = [1] * len(free)
    for i, room in enumerate(free):
        shares[i] += min(room - 1, total - sum(shares))
    return shares


def test_equal_shares_are_pinned_and_unequal_ones_are_left_to_slurm() -> None:
    assert place_arguments("7", (("n1", 6), ("n2", 6)))[-2:] == ["TresPerNode=gres:gpu:6", "TresPerJob="]
    assert place_arguments("7", (("n1", 3), ("n2", 1)))[-2:] == ["TresPerNode=", "TresPerJob=gres:gpu:4"]
