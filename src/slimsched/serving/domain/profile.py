"""A profile: what each key costs on a device, by batch size and concurrency."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.kernel.errors import DataError
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.service_noise import MEASURED_SPREAD

Place = tuple[int, int, int]
"""(model, segment, choice): what an instance is loaded for."""


class Profile:
    """Latency, active energy and memory of one model on a device.

    `latency_s[key][i][j]` is the time of a batch of `batches[j]` examples while `concurrency[i]` batches run
    on the device at once (including this one). `energy_j[key][j]` is what it draws above idle. Latency and
    energy are interpolated between measured batch sizes, and grow in proportion beyond the last.

    `joined` makes one profile of several models on the same device.
    """

    def __init__(
        self,
        *,
        name: str,
        source: str,
        batches: Sequence[int],
        concurrency: Sequence[int],
        latency_s: Mapping[Key, Sequence[Sequence[float]]],
        energy_j: Mapping[Key, Sequence[float]],
        instance_bytes: Mapping[Place, int],
        load_s: Mapping[Place, float],
        idle_w: float,
        element_bytes: int,
        energy_source: str = "",
        spread: float = MEASURED_SPREAD,
    ) -> None:
        self.name = name
        self.source = source
        self.batches = tuple(batches)
        self.concurrency = tuple(concurrency)
        self.latency_table_s = latency_s
        self.energy_table_j = energy_j
        self.instance_bytes = instance_bytes
        self.load_s = load_s
        self.idle_w = idle_w
        self.element_bytes = element_bytes
        self.energy_source = energy_source or source.partition(":")[0]
        """Where the figures of energy come from: latency may be measured while energy is modelled."""
        self.spread = spread
        """How much longer equal batches take at the 90th percentile than at the 10th, relative."""
        self._check()
        self._latency: dict[Key, list[list[float]]] = {}  # [batch - 1][concurrency - 1]
        self._energy: dict[Key, list[float]] = {}
        for key in latency_s:
            by_concurrency = _dense(self.batches, np.array(latency_s[key], dtype=float))
            self._latency[key] = _dense(self.concurrency, by_concurrency.T).tolist()
            self._energy[key] = _dense(self.batches, np.array(energy_j[key], dtype=float)).tolist()
        self.top_concurrency = max(self.concurrency)
        self.parts: tuple[Profile, ...] = (self,)
        """One profile per model."""

    @staticmethod
    def joined(parts: "Sequence[Profile]") -> "Profile":
        """Join the profiles of several models on one device; the first gives the device's own figures."""
        if len(parts) == 1:
            return parts[0]
        whole = object.__new__(Profile)
        vars(whole).update(vars(parts[0]))
        whole.parts = tuple(parts)
        whole.top_concurrency = min(part.top_concurrency for part in parts)
        whole._latency = {key: rows for part in parts for key, rows in part._latency.items()}
        whole._energy = {key: row for part in parts for key, row in part._energy.items()}
        whole.instance_bytes = {at: size for part in parts for at, size in part.instance_bytes.items()}
        whole.load_s = {at: seconds for part in parts for at, seconds in part.load_s.items()}
        return whole

    def part(self, model: int) -> "Profile":
        """The profile of one of the models."""
        return next(part for part in self.parts if next(iter(part.latency_table_s)).model == model)

    def slowed(self, factor: float) -> "Profile":
        """Return the profile of a device that takes `factor` times as long for everything."""
        if factor == 1.0:
            return self
        if len(self.parts) > 1:
            return Profile.joined([part.slowed(factor) for part in self.parts])
        return Profile(
            name=f"{self.name} ÷ {factor:g}",
            source=self.source,
            batches=self.batches,
            concurrency=self.concurrency,
            latency_s={
                k: [[v * factor for v in row] for row in rows] for k, rows in self.latency_table_s.items()
            },
            energy_j=self.energy_table_j,
            instance_bytes=self.instance_bytes,
            load_s={place: seconds * factor for place, seconds in self.load_s.items()},
            idle_w=self.idle_w,
            element_bytes=self.element_bytes,
            energy_source=self.energy_source,
            spread=self.spread,
        )

    def latency_s(self, key: Key, batch: int, concurrency: int = 1) -> float:
        """Time of a batch while `concurrency` batches share the device."""
        by_concurrency = self.latencies_s(key, batch)
        if concurrency <= len(by_concurrency):
            return by_concurrency[concurrency - 1]
        return by_concurrency[-1] * concurrency / len(by_concurrency)

    def latencies_s(self, key: Key, batch: int) -> list[float]:
        """Time of a batch while 1, 2, …, `top_concurrency` batches share the device."""
        rows = self._latency.get(key) or self._course_latency(key)
        if batch <= len(rows):
            return rows[batch - 1]
        return [latency_s * batch / len(rows) for latency_s in rows[-1]]

    def energy_j(self, key: Key, batch: int) -> float:
        """Energy of a batch above idle."""
        row = self._energy.get(key) or self._course_energy(key)
        return row[batch - 1] if batch <= len(row) else row[-1] * batch / len(row)

    def least_energy_j(self, key: Key, batch_limit: int) -> float:
        """Least energy per example above idle, over all batch sizes."""
        return min(row / size for size, row in enumerate(self._energy[key][:batch_limit], start=1))

    def work_s(self, key: Key, batch_limit: int) -> float:
        """Least device time per example: the best throughput over batch size and concurrency."""
        return min(
            latency_s / (size * count)
            for size, row in enumerate(self._latency[key][:batch_limit], start=1)
            for count, latency_s in enumerate(row, start=1)
        )

    def _course_latency(self, key: Key) -> list[list[float]]:
        """Add up the latencies of all segments of a key with choices ahead, and keep the result."""
        legs = [self._latency[leg] for leg in key.legs]
        rows = [[sum(at) for at in zip(*row, strict=True)] for row in zip(*legs, strict=True)]
        self._latency[key] = rows
        return rows

    def _course_energy(self, key: Key) -> list[float]:
        row = self._energy[key] = [
            sum(at) for at in zip(*[self._energy[leg] for leg in key.legs], strict=True)
        ]
        return row

    def _check(self) -> None:
        where = f"profile '{self.name}'"
        if not self.batches or list(self.batches) != sorted(set(self.batches)) or self.batches[0] != 1:
            raise DataError(f"{where}: batches must rise from 1, got {list(self.batches)}")
        if (
            not self.concurrency
            or list(self.concurrency) != sorted(set(self.concurrency))
            or self.concurrency[0] != 1
        ):
            raise DataError(f"{where}: concurrency must rise from 1, got {list(self.concurrency)}")
        if self.latency_table_s.keys() != self.energy_table_j.keys():
            raise DataError(f"{where}: latency_s and energy_j must name the same keys")
        for key, rows in self.latency_table_s.items():
            if len(rows) != len(self.concurrency) or any(len(row) != len(self.batches) for row in rows):
                raise DataError(
                    f"{where}: {key} needs {len(self.concurrency)} × {len(self.batches)} latencies"
                )
            if any(value <= 0 for row in rows for value in row):
                raise DataError(f"{where}: {key} has a latency_s that is not above 0; a batch takes time")
            if len(self.energy_table_j[key]) != len(self.batches) or min(self.energy_table_j[key]) < 0:
                raise DataError(f"{where}: {key} needs {len(self.batches)} values of energy_j, none below 0")
        if self.idle_w < 0:
            raise DataError(f"{where}: idle_w is {self.idle_w:g}; give the idle power in watts, 0 or above")


def _dense(at: Sequence[int], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate linearly along the last axis, from the points `at` to 1, 2, …, the last of them."""
    points, wanted = np.array(at), np.arange(1, at[-1] + 1)
    after = np.searchsorted(points, wanted)
    before = np.where(points[after] == wanted, after, after - 1)
    share = (wanted - points[before]) / np.maximum(1, points[after] - points[before])
    dense: NDArray[np.float64] = values[..., before] + share * (values[..., after] - values[..., before])
    return dense
