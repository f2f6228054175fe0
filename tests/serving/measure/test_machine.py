"""This machine: what is found, how it is shared out, and the scenario that follows."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from slimsched.core.config import ConfigError
from slimsched.serving.gateway.goal import parse_goal
from slimsched.serving.measure.machine import (
    Gpu,
    Plan,
    ThisMachine,
    choose_places,
    describe,
    find_gpus,
    find_machine,
    plan_machine,
    usable_cores,
    write_scenario,
)
from slimsched.serving.options import MachineOptions
from slimsched.serving.scenario.files import (
    CONFIGS,
    build_scenario,
    load_scenario,
    read_profile,
)

H200 = Gpu(index=0, name="NVIDIA H200", total_bytes=150_000_000_000, free_bytes=149_000_000_000)


def machine(cores: int, *gpus: Gpu, shares_gpus: bool = True) -> ThisMachine:
    return ThisMachine(
        processor="AMD EPYC 7763",
        cores=tuple(range(cores)),
        is_bound=True,
        memory_bytes=16_000_000_000,
        gpus=gpus,
        shares_gpus=shares_gpus,
    )


def planned(found: ThisMachine, profile: str = "cpu-core", goal: str | None = None, **changed: Any) -> Plan:
    record = replace(read_profile(CONFIGS / "profiles" / f"{profile}.json"), **changed)
    places = [replace(place, records=(replace(record, name=place.device),)) for place in choose_places(found)]
    asked = None if goal is None else parse_goal(goal)
    return plan_machine(found, places, ["slimresnet"], asked)


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (2, 2), (3, 3), (8, 7)])
def test_no_core_has_two_threads_that_compute(cores: int, servers: int) -> None:
    (place,) = choose_places(machine(cores))
    bound = [core for host in place.hosts for core in host.cores]
    assert len(place.hosts) == servers
    assert len(set(bound)) == len(bound) == sum(host.threads for host in place.hosts) <= cores


def test_a_slow_model_gets_several_cores_for_each_server() -> None:
    (place,) = choose_places(machine(8), threads=2)
    assert [host.cores for host in place.hosts] == [(6, 7), (4, 5), (2, 3)]
    (place,) = choose_places(machine(3), threads=4)
    assert [host.threads for host in place.hosts] == [3]


def test_servers_share_a_gpu_only_where_they_can_run_side_by_side() -> None:
    (place,) = choose_places(machine(16, H200))
    assert [host.kind for host in place.hosts] == ["cuda", "cuda"]
    (place,) = choose_places(machine(16, H200, shares_gpus=False))
    assert len(place.hosts) == 1


def test_the_scenario_of_each_machine_can_be_served_and_simulated() -> None:
    for found, profile in (
        (machine(1), "cpu-core"),
        (machine(8), "cpu-core"),
        (machine(16, H200), "h200-100"),
    ):
        plan = planned(found, profile)
        scenario = build_scenario(plan.raw, "this machine", CONFIGS)
        assert len(scenario.cluster) == len(plan.raw["server"])
        assert all(host is not None for host in scenario.hosts)
        ((widest, narrowest),) = plan.carries.values()
        assert 0 < widest < narrowest
        assert any("slimresnet" in line for line in describe(plan, scenario))


def test_a_limit_on_latency_is_the_deadline_that_batches_are_chosen_for() -> None:
    relaxed = build_scenario(planned(machine(2)).raw, "this machine", CONFIGS)
    tight = build_scenario(planned(machine(2), goal="p99<=30ms, max accuracy").raw, "this machine", CONFIGS)
    assert tight.load.deadline_s == 0.03
    assert tight.schedulers[0].batch_limit < relaxed.schedulers[0].batch_limit


def test_what_fits_stays_loaded_and_what_does_not_is_loaded_when_it_is_needed() -> None:
    sizes = read_profile(CONFIGS / "profiles" / "cpu-core.json").instance_bytes
    roomy, full = planned(machine(2)), planned(machine(2), instance_bytes=[3_000_000_000] * len(sizes))
    assert roomy.raw["server"][0]["scheduler"]["resident"] == ["widest"]
    assert "resident" not in full.raw["server"][0]["scheduler"]
    with pytest.raises(ConfigError, match=r"no device of this machine holds the model.* takes 9.0 GB"):
        planned(machine(2), instance_bytes=[9_000_000_000] * len(sizes))


def test_fronts_follow_the_bytes_that_the_devices_can_take() -> None:
    assert planned(machine(4)).fronts == 0
    assert planned(machine(16)).fronts == 1
    quick = read_profile(CONFIGS / "profiles" / "h200-100.json").latency_s
    faster = [[[cell / 4 for cell in row] for row in rows] for rows in quick]
    assert (
        planned(machine(16, H200), "h200-100").fronts
        <= planned(machine(16, H200), "h200-100", latency_s=faster).fronts
    )


def test_the_written_file_says_the_same(tmp_path: Path) -> None:
    plan = planned(machine(2), goal="p99<=200ms, max accuracy")
    write_scenario(tmp_path / "mine.toml", plan)
    written = load_scenario(str(tmp_path / "mine.toml"))
    direct = build_scenario(plan.raw, "this machine", CONFIGS)
    assert written.hosts == direct.hosts
    assert written.schedulers == direct.schedulers
    assert written.load == direct.load
    key = written.cluster.models[0].legs(written.cluster.models[0].spec.widest)[0]
    assert written.cluster.profiles[0].latency_s(key, 8) == direct.cluster.profiles[0].latency_s(key, 8)


def test_cores_are_those_of_the_affinity_and_the_quota(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == (tuple(allowed), True)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    cores, is_bound = usable_cores(tmp_path)
    assert cores == tuple(allowed[:1])
    assert is_bound == (len(allowed) == 1)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == (tuple(allowed), True)


@pytest.mark.parametrize("devices", ["gpu", "cuda:x", "cpu,cuda:0"])
def test_devices_that_are_not_understood_are_refused(devices: str) -> None:
    with pytest.raises(ConfigError, match="write cpu, cuda, or cuda:0,cuda:1"):
        find_machine(MachineOptions(devices=devices))


class Nvml:
    """NVML of a machine with a whole GPU, and one of two slices."""

    NVML_DEVICE_MIG_ENABLE = 1

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return f"gpu {index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:  # noqa: N802
        return [int(handle == "gpu 1"), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> str:  # noqa: N802
        if number > 1:
            raise RuntimeError("not found")
        return f"{handle} slice {number}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80e9, free=60e9)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=37)

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return f"Test {handle}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"MIG-{handle[-1]}"


def test_gpus_and_slices_are_found_and_hidden_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus, notes = find_gpus()
    assert [(gpu.index, gpu.slice) for gpu in gpus] == [(0, ""), (1, "MIG-0"), (1, "MIG-1")]
    assert not notes
    assert "37 % busy" in gpus[0].text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus() == ([], [])
