"""Utilization and mean power of a device over a stretch of time, read by a thread beside the work."""

from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

from slimsched.serving.execution.live.power_meter import PowerMeter, open_nvml


class Utilization(Protocol):
    """Share of the recent past in which the device worked."""

    source: str

    def read(self) -> float | None:
        """In [0, 1]; None where nobody can say."""
        ...


class NvmlUtilization:
    """As nvidia-smi shows it: the share of time in which at least one kernel ran."""

    source = "NVML utilization"

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> float:
        """Of the last sampling period, between a sixth of a second and a second."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100


class NoUtilization:
    """A device that does not say; the time its lanes were busy stands in."""

    source = "busy time of lanes"

    def read(self) -> None:
        """Nothing."""


class DeviceWatch:
    """Watches from `with` to its end; figures leave out the first `settle_s`."""

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
        """Mean power between the first and the last tick of the counter; None where there were no two."""
        if len(self._ticks) < 2:
            return None
        (start_s, start_j), (end_s, end_j) = self._ticks[0], self._ticks[-1]
        return (end_j - start_j) / (end_s - start_s)

    @property
    def utilization(self) -> float | None:
        """Mean of the readings."""
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
    """Meter and utilization of a whole GPU, if NVML is there."""
    meter = open_nvml(gpu)
    if meter is None:
        return None
    import pynvml

    return meter, NvmlUtilization(pynvml, pynvml.nvmlDeviceGetHandleByIndex(gpu))
