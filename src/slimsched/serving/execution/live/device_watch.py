"""Measures utilization and mean power of a device over some time, in a thread of its own."""

from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

from slimsched.serving.execution.live.power_meter import PowerMeter, open_nvml


class Utilization(Protocol):
    """The share of recent time in which the device was busy."""

    source: str

    def read(self) -> float | None:
        """Return a value in [0, 1], or None if it cannot be measured."""
        ...


class NvmlUtilization:
    """Utilization as in nvidia-smi: the share of time in which at least one kernel ran."""

    source = "NVML utilization"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> float:
        """Read the last sampling period, which lasts between a sixth of a second and a second."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100


class NoUtilization:
    """A device without a utilization counter; the busy time of its lanes is used instead."""

    source = "busy time of lanes"

    def read(self) -> None:
        """Return None."""


class DeviceWatch:
    """Watches a device inside a `with` block; figures leave out the first `settle_s`."""

    def __init__(self, meter: PowerMeter, utilization: Utilization, settle_s: float) -> None:
        self._meter, self._utilization, self._settle_s = meter, utilization, settle_s
        self._ticks: list[tuple[float, float]] = []
        self._shares: list[float] = []
        self._stop = Event()

    def __enter__(self) -> "DeviceWatch":
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def power_w(self) -> float | None:
        """Mean power between the first and the last tick of the counter; None with fewer than two ticks."""
        if len(self._ticks) < 2:
            return None
        (start_s, start_j), (end_s, end_j) = self._ticks[0], self._ticks[-1]
        return (end_j - start_j) / (end_s - start_s)

    @property
    def utilization(self) -> float | None:
        """Mean of the utilization readings."""
        return sum(self._shares) / len(self._shares) if self._shares else None

    def _watch(self) -> None:
        began_s, last_j = monotonic(), -1.0
        while not self._stop.wait(0.005):
            if monotonic() - began_s < self._settle_s:
                continue
            reading = self._meter.read(0.0)
            if reading.energy_j != last_j:
                if last_j >= 0.0:
                    self._ticks.append((reading.at_s, reading.energy_j))
                last_j = reading.energy_j
            share = self._utilization.read()
            if share is not None:
                self._shares.append(share)


def open_gpu(gpu: int) -> tuple[PowerMeter, Utilization] | None:
    """Open meter and utilization of a whole GPU; None without NVML."""
    meter = open_nvml(gpu)
    if meter is None:
        return None
    import pynvml

    return meter, NvmlUtilization(pynvml, pynvml.nvmlDeviceGetHandleByIndex(gpu))
