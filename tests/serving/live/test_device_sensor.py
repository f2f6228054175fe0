"""Sensors: what a CPU server and NVML say about utilization and memory, and from where."""

import mmap
from collections.abc import Sequence
from time import process_time
from types import SimpleNamespace

from slimsched.serving.domain.cluster import Host
from slimsched.serving.live.sensors import (
    BY_LANES,
    CpuSensor,
    DeviceReading,
    DeviceSensor,
    NvmlSensor,
    available_bytes,
    open_sensor,
    resident_bytes,
)


def held() -> mmap.mmap:
    """64 MB that this process holds from now on; an allocator might hand out what it has kept."""
    memory = mmap.mmap(-1, 64 * 2**20)
    memory.write(bytes(len(memory)))
    return memory


def test_a_cpu_server_reads_its_processor_time_and_its_memory() -> None:
    sensor = CpuSensor(threads=1, speed=1.0)
    kept = held()
    until_s = process_time() + 0.05
    while process_time() < until_s:
        pass
    reading = sensor.read()
    assert reading.utilization is not None
    assert 0.0 < reading.utilization <= 1.0
    assert reading.used_bytes is not None
    assert reading.used_bytes > 0.9 * len(kept)
    assert reading.free_bytes == available_bytes() or reading.free_bytes is not None


def test_memory_that_was_there_before_does_not_count() -> None:
    kept = held()
    used = CpuSensor(threads=1, speed=1.0).read().used_bytes
    assert used is not None
    assert used < len(kept) / 2
    assert (resident_bytes() or 0) > len(kept)


class Nvml:
    """Answers as NVML does for one GPU."""

    def __init__(self, processes: Sequence[tuple[int, int]], used: int) -> None:
        self.processes, self.used = list(processes), used

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: object) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=self.used, free=1000 - self.used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: object) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes]


def test_nvml_gives_the_memory_of_the_process_where_it_lists_it() -> None:
    nvml = Nvml([(7, 100), (8, 500)], 600)
    sensor = NvmlSensor(nvml, None, pid=7, shared=True, allocated=lambda: 1)
    nvml.processes[0] = (7, 130)
    assert sensor.read() == DeviceReading(utilization=0.87, used_bytes=30, free_bytes=400)
    assert sensor.memory_source == "NVML memory of the process"


def test_an_unlisted_process_that_has_the_gpu_alone_takes_the_memory_of_the_gpu() -> None:
    nvml = Nvml([(999, 100)], 100)
    sensor = NvmlSensor(nvml, None, pid=7, shared=False, allocated=lambda: 1)
    nvml.used = 150
    assert sensor.read().used_bytes == 50
    assert sensor.memory_source == "NVML memory of the GPU"


def test_an_unlisted_process_on_a_shared_gpu_takes_its_own_allocators_word() -> None:
    allocated = [10]
    sensor = NvmlSensor(Nvml([], 100), None, pid=7, shared=True, allocated=lambda: allocated[0])
    allocated[0] = 35
    assert sensor.read().used_bytes == 25
    assert "allocator" in sensor.memory_source


def test_a_scenario_may_ask_for_modelled_figures() -> None:
    sensor = open_sensor("modelled", Host())
    assert type(sensor) is DeviceSensor
    sample = sensor.read().sampled(0.4, 10.0, 123)
    assert (sample.utilization, sample.vram_bytes, sample.measured) == (0.4, 123, False)
    assert sensor.utilization_source == BY_LANES
