"""Slurm's own files about machines, racks and jobs."""

import pytest

from slimsched.core.config import SlimError
from slimsched.jobs.domain import gpu_count
from slimsched.jobs.traces.clusters import host_names, read_racks, read_slurm_conf, slurm_topology

CONF = """\
ClusterName=lab   # ours
SchedulerType=sched/backfill
SchedulerParameters=defer,bf_interval=60
NodeName=DEFAULT CPUs=64 Gres=gpu:a100:8(S:0-1)
NodeName=n[1-4] \\
  RealMemory=1000
NodeName=big Gres=gpu:h100:4,gpu:v100:2
NodeName=cpu1 Gres=none
PartitionName=main Nodes=ALL
PartitionName=small Nodes=n[1-2],cpu1
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12],x", ("n08", "n09", "n10", "n12", "x")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a[1]-ib,b", ("a1-ib", "b")),
        ("", ()),
    ],
)
def test_lists_of_machines_are_spelled_out(text: str, names: tuple[str, ...]) -> None:
    assert host_names(text) == names


@pytest.mark.parametrize("text", ["n[1-x]", "n[1-99999999]", "n[1-5000]m[1-5000]"])
def test_a_list_that_is_none_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(SlimError):
        host_names(text)


def test_gpus_of_several_kinds_are_added_unless_the_total_is_named_too() -> None:
    assert gpu_count("cpu=8,gres/gpu=4,gres/gpu:a100=4,mem=1G") == 4
    assert gpu_count("cpu=8,gres/gpu:a100=4,gres/gpu:v100=2") == 6


def test_a_slurm_conf_gives_machines_partitions_and_the_present_policy(tmp_path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(CONF)
    files = read_slurm_conf(path)
    assert files.machines_of(None) == {"n1": 8, "n2": 8, "n3": 8, "n4": 8, "big": 6}
    assert files.machines_of("small") == {"n1": 8, "n2": 8}
    assert files.policy == "backfill:interval_s=60:resolution_s=60"
    with pytest.raises(SlimError, match="unknown partition 'none'"):
        files.machines_of("none")


def test_leaf_switches_are_racks_and_a_machine_on_none_stands_alone(tmp_path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(
        "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n3\nSwitchName=top Switches=leaf[1-2]\n"
    )
    topology = slurm_topology({"n1": 8, "n2": 8, "n3": 8, "n4": 8}, read_racks(path), "lab")
    assert [machine.rack for machine in topology.machines] == ["leaf1", "leaf1", "leaf2", "n4"]


@pytest.mark.parametrize("text", ["", "ClusterName=x\n", "NodeName=n1 CPUs=4\n"])
def test_files_without_machines_are_refused_in_one_line(text: str, tmp_path) -> None:
    path = tmp_path / "slurm.conf"
    path.write_text(text)
    for read in (read_slurm_conf, read_racks):
        with pytest.raises(SlimError) as caught:
            read(path)
        assert "\n" not in str(caught.value)
