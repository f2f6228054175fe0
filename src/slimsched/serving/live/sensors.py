"""Power, utilization and memory of a device, each from the best source available."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Literal, Protocol

from msgspec import Struct

from slimsched.serving.domain.cluster import Host
from slimsched.serving.scheduler.scheduler import TelemetrySampled

log = logging.getLogger("slim.sensors")


class Reading(Struct, frozen=True, kw_only=True):
    """Energy since the meter was made, and when it was read."""

    at_s: float
    energy_j: float


class PowerMeter(Protocol):
    """A source of energy readings."""

    source: str

    def read(self, active_j: float) -> Reading:
        """Return the energy so far; `active_j`, for modelled meters, is the energy above idle by profile."""


class NvmlCounter:
    """The GPU's own energy counter (Volta and newer), in millijoules, updated about every 100 ms."""

    source = "measured: NVML energy counter"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._zero_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def read(self, active_j: float) -> Reading:
        """Read the counter and return the energy since the start."""
        now_mj = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        return Reading(at_s=monotonic(), energy_j=(now_mj - self._zero_mj) / 1000)


class NvmlPolled:
    """For GPUs without a counter: integrates the power that it polls at each reading."""

    source = "measured: NVML power, polled and integrated"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._last_s, self._energy_j = monotonic(), 0.0

    def read(self, active_j: float) -> Reading:
        """Add the current power times the time since the last reading."""
        now_s = monotonic()
        watts = self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
        self._energy_j += watts * (now_s - self._last_s)
        self._last_s = now_s
        return Reading(at_s=now_s, energy_j=self._energy_j)


class Rapl:
    """The processor package's energy counter; all processes of the host share it."""

    source = "measured: RAPL package counter (whole host)"

    def __init__(self, domains: list[Path]) -> None:
        self._domains = domains
        self._wrap_uj = [int((domain / "max_energy_range_uj").read_text()) for domain in domains]
        self._last_uj = self._counters()
        self._energy_j = 0.0

    def read(self, active_j: float) -> Reading:
        """Add the change of the counters, which may have wrapped around."""
        now_uj = self._counters()
        for now, last, wrap in zip(now_uj, self._last_uj, self._wrap_uj, strict=True):
            self._energy_j += ((now - last) % wrap) / 1e6
        self._last_uj = now_uj
        return Reading(at_s=monotonic(), energy_j=self._energy_j)

    def _counters(self) -> list[int]:
        return [int((domain / "energy_uj").read_text()) for domain in self._domains]


class Modelled:
    """Without a sensor of its own: idle power over time, plus the energy of batches by profile."""

    def __init__(self, idle_w: float, by: str = "") -> None:
        self.source = f"modelled by profile: {by.removeprefix('modelled: ')}"
        self._idle_w, self._zero_s = idle_w, monotonic()

    def read(self, active_j: float) -> Reading:
        """Return idle power over time plus active energy by profile."""
        now_s = monotonic()
        return Reading(at_s=now_s, energy_j=self._idle_w * (now_s - self._zero_s) + active_j)


def mps_is_running() -> bool:
    """Whether CUDA programs of this user go through an MPS daemon."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return (Path(folder) / "control").exists()


def open_meter(kind: str, idle_w: float, index: int = 0, *, by: str = "") -> PowerMeter:
    """Open the best meter: counter, polled, RAPL or modelled `by` what the profile says, in this order."""
    if kind == "cuda" and mps_is_running():  # its counter cannot tell apart the servers that share it
        return Modelled(idle_w, by)
    if kind == "cuda" and (meter := open_nvml(index)) is not None:
        return meter
    if kind == "cpu":
        domains = [d for d in sorted(Path("/sys/class/powercap").glob("intel-rapl:?")) if _readable(d)]
        if domains:
            return Rapl(domains)
    return Modelled(idle_w, by)


def open_nvml(index: int) -> PowerMeter | None:
    """Open the meter of a whole GPU; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception as error:
        log.warning("NVML does not work (%s), so the energy of GPU %d is modelled", error, index)
        return None
    try:
        return NvmlCounter(pynvml, handle)
    except pynvml.NVMLError:
        return NvmlPolled(pynvml, handle)


def _readable(domain: Path) -> bool:
    try:
        return int((domain / "energy_uj").read_text()) >= 0
    except (OSError, ValueError):
        return False


# -- Utilization and memory of a server's device, asked of NVML or of the operating system.
#
# Each figure comes with its source, because they differ in what they count. NVML's utilization is the share
# of time in which any kernel ran on the GPU, whoever started it. A CPU server counts the time of its own
# process on its cores. Memory is what the server holds beyond what it held with nothing loaded.

PROC = Path("/proc")
BY_PROFILE = "modelled: sum of profiles"
BY_LANES = "busy time of lanes"

Sensors = Literal["measured", "modelled"]


class DeviceReading(Struct, frozen=True, kw_only=True):
    """One reading: utilization in [0, 1], bytes held and bytes free; None where nobody can tell."""

    utilization: float | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None

    def sampled(self, busy: float, power_w: float, profiled_bytes: int) -> TelemetrySampled:
        """Return this reading for the scheduler; where it is empty, with what the server can tell itself."""
        return TelemetrySampled(
            utilization=busy if self.utilization is None else self.utilization,
            power_w=power_w,
            vram_bytes=profiled_bytes if self.used_bytes is None else self.used_bytes,
            measured=self.used_bytes is not None,
            free_bytes=self.free_bytes,
        )


class DeviceSensor:
    """Reads utilization and memory, and names their sources; this one asks nothing.

    Then the server uses the busy time of its lanes and the sum of its profiles.
    """

    utilization_source = BY_LANES
    memory_source = BY_PROFILE

    def read(self) -> DeviceReading:
        """Read the sensors; utilization is that since the last reading, or of the latest period."""
        return DeviceReading()


class CpuSensor(DeviceSensor):
    """Processor time of this process over that of its threads, its resident memory, and what is available.

    A server slowed down by resting (`speed` below 1) counts its rests as busy.
    """

    utilization_source = "processor time of the process"
    memory_source = "resident memory of the process"

    def __init__(self, *, threads: int, speed: float) -> None:
        self._cores = threads * speed
        self._last_s, self._last_cpu_s = monotonic(), process_time()
        self._zero_bytes = resident_bytes() or 0

    def read(self) -> DeviceReading:
        """Read the process's clock and the system's files."""
        now_s, cpu_s, held = monotonic(), process_time(), resident_bytes()
        busy = (cpu_s - self._last_cpu_s) / max(1e-6, (now_s - self._last_s) * self._cores)
        self._last_s, self._last_cpu_s = now_s, cpu_s
        return DeviceReading(
            utilization=min(1.0, busy),
            used_bytes=None if held is None else max(0, held - self._zero_bytes),
            free_bytes=available_bytes(),
        )


class NvmlSensor(DeviceSensor):
    """NVML's utilization of the whole GPU, and memory of this process where the driver lists it.

    A process in a container is often not listed. Then the memory of the GPU counts if no other server shares
    it, else that of this process by its own allocator.
    """

    utilization_source = "NVML utilization of the GPU"

    def __init__(
        self, nvml: Any, handle: Any, *, pid: int, shared: bool, allocated: Callable[[], int]
    ) -> None:
        self._nvml, self._handle, self._pid, self._allocated = nvml, handle, pid, allocated
        self._of = self._of_process
        self.memory_source = "NVML memory of the process"
        if self._of_process() is None:
            self._of = self._allocated if shared else self._of_gpu
            self.memory_source = (
                "CUDA allocator of the process (NVML does not list it)"
                if shared
                else "NVML memory of the GPU"
            )
        self._zero_bytes = self._of() or 0

    def read(self) -> DeviceReading:
        """Read utilization of the last sampling period (a sixth of a second to a second), and memory."""
        held = self._of()
        return DeviceReading(
            utilization=float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100,
            used_bytes=None if held is None else max(0, held - self._zero_bytes),
            free_bytes=int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free),
        )

    def _of_process(self) -> int | None:
        for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if one.pid == self._pid and one.usedGpuMemory is not None:
                return int(one.usedGpuMemory)
        return None

    def _of_gpu(self) -> int | None:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)


def open_sensor(sensors: Sensors, host: Host) -> DeviceSensor:
    """Open the best sensor of a server's device; one that asks nothing if the scenario says so."""
    if sensors == "modelled":
        return DeviceSensor()
    if host.kind == "cpu":
        return CpuSensor(threads=host.threads, speed=host.speed)
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(host.gpu)
        sensor = NvmlSensor(
            pynvml, handle, pid=os.getpid(), shared=mps_is_running(), allocated=torch.cuda.memory_reserved
        )
        sensor.read()
    except Exception as error:  # no NVML, or one that lacks a call: its error class is not known without it
        log.warning("NVML does not work (%s), so utilization and memory are the server's own count", error)
        return DeviceSensor()
    return sensor


def resident_bytes() -> int | None:
    """Return the memory that this process holds; None where the system does not say."""
    try:
        pages = int((PROC / "self" / "statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int | None:
    """Return the memory that the system can still give to programs; None where it does not say."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
