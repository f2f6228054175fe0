"""Power and energy of a device, from the best source available."""

import os
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct


class Reading(Struct, frozen=True, kw_only=True):
    """Energy since the meter was made, and when it was read."""

    at_s: float
    energy_j: float


class PowerMeter(Protocol):
    """A source of energy readings; `error` is their relative error."""

    source: str
    error: float

    def read(self, active_j: float) -> Reading:
        """Return the energy so far; `active_j`, for modelled meters, is the energy above idle by profile."""
        ...


class NvmlCounter:
    """The GPU's own energy counter (Volta and newer), in millijoules, updated about every 100 ms."""

    source = "NVML energy counter"
    error = 0.05

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._zero_mj = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def read(self, active_j: float) -> Reading:
        """Read the counter and return the energy since the start."""
        now_mj = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        return Reading(at_s=monotonic(), energy_j=(now_mj - self._zero_mj) / 1000)


class NvmlPolled:
    """For GPUs without a counter: integrates the power that it polls at each reading."""

    source = "NVML power, polled and integrated"
    error = 0.15

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

    source = "RAPL package counter (whole host)"
    error = 0.1

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
    """For devices without sensors: idle power over time, plus the energy of batches by profile."""

    source = "modelled: idle power + profile"
    error = 0.5

    def __init__(self, idle_w: float) -> None:
        self._idle_w, self._zero_s = idle_w, monotonic()

    def read(self, active_j: float) -> Reading:
        """Return idle power over time plus active energy by profile."""
        now_s = monotonic()
        return Reading(at_s=now_s, energy_j=self._idle_w * (now_s - self._zero_s) + active_j)


class SharedGpu(Modelled):
    """For a GPU that servers share under MPS: its counter cannot tell them apart, a profile can."""

    source = "profile measured with the NVML energy counter (GPU shared under MPS)"
    error = 0.2


def mps_is_running() -> bool:
    """Whether CUDA programs of this user go through an MPS daemon."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return (Path(folder) / "control").exists()


def open_meter(kind: str, idle_w: float, index: int = 0) -> PowerMeter:
    """Open the best meter for 'cuda' or 'cpu': counter, polled, RAPL or modelled, in this order."""
    if kind == "cuda" and mps_is_running():
        return SharedGpu(idle_w)
    if kind == "cuda" and (meter := open_nvml(index)) is not None:
        return meter
    if kind == "cpu":
        domains = [d for d in sorted(Path("/sys/class/powercap").glob("intel-rapl:?")) if _readable(d)]
        if domains:
            return Rapl(domains)
    return Modelled(idle_w)


def open_nvml(index: int) -> PowerMeter | None:
    """Open the meter of a whole GPU; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:
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
