"""A profile: what each key costs on a device, by batch size and concurrency.

Profiles are measured, or modelled from a data sheet by the roofline model; files hold them as records. In
service a batch may take longer, and equal batches differ: the extra cost and the noise are here too.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import (
    Amount,
    Bytes,
    ConfigError,
    Count,
    CountOrZero,
    DataError,
    Factor,
    Name,
    PositiveAmount,
    PositiveSeconds,
    PositiveShare,
    Seconds,
)
from slimsched.models.spec import Step
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key, onward

# -- A device, described by its data sheet and its software.


class Device(Struct, frozen=True, kw_only=True):
    """Public figures of a device, from which a profile is modelled when none was measured.

    `efficiency` is the share of the peak that convolutions of this size reach. `launch_s` is the time that
    the software spends on each segment besides arithmetic; concurrent instances can overlap it.
    """

    name: Name  # how scenarios call it
    source: str  # where the figures come from, and which are assumed
    peak_flop_per_s: PositiveAmount  # peak arithmetic, at the precision that `source` names
    memory_bytes_per_s: PositiveAmount  # memory bandwidth
    memory_bytes: Bytes  # size of the memory
    idle_w: Amount  # power when idle
    peak_w: Amount  # power at full load
    launch_s: PositiveSeconds  # time of the software per segment, besides arithmetic
    efficiency: PositiveShare = 0.5  # share of the peak that convolutions reach
    load_bytes_per_s: PositiveAmount = 6e9  # speed at which weights are loaded
    load_fixed_s: Seconds = 0.002  # time to load an instance, besides its bytes
    element_bytes: Count = 4  # bytes of a number: 4 for fp32, 2 for fp16

    def __post_init__(self) -> None:
        if self.idle_w > self.peak_w:
            power = f"idle_w is {self.idle_w:g} and peak_w {self.peak_w:g}"
            raise ConfigError(f"device '{self.name}': {power}; give 0 ≤ idle_w ≤ peak_w")


# -- The extra cost of a batch in service, beyond its profile, which was measured on an idle device.

PACE_S = 0.1
"""How long each entry of `pace` lasts."""


class ServiceCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch in service takes pace × (overhead_s + slowdown × the profile's time).

    `overhead_s` is the server's own work per batch. `slowdown` comes from sharing a core and from cold
    caches. A machine also has slow periods, longer than a batch, that cause latency tails: `pace` is how much
    longer than usual batches took, one entry per tenth of a second, repeated. `slim validate` measures all
    three.
    """

    slowdown: Factor = 1.0  # factor on the profile's time
    overhead_s: Seconds = 0.0  # the server's own work per batch
    pace: tuple[Factor, ...] = ()  # how much longer batches take, by tenths of a second

    def latency_s(self, alone_s: float, now_s: float) -> float:
        """Return the time of a batch that begins now and takes `alone_s` by its profile."""
        usual_s = self.overhead_s + self.slowdown * alone_s
        return usual_s * self.pace[int(now_s / PACE_S) % len(self.pace)] if self.pace else usual_s


ALONE = ServiceCost()


# -- Service noise: equal batches do not take equal time, and a device's pace drifts.
#
# A batch takes  profile · e^(σ·z) · pace(t).  z is drawn anew for each batch. The pace wanders around 1 and
# keeps its direction for about a second, because slow spells of a device last longer than a batch.

MEASURED_SPREAD = 0.2
"""Spread of repeated batches on the H200 of the shipped profiles (0.19 to 0.22); on a CPU core it is 0.09."""

DECILES = 2.563
"""Distance between the 10th and the 90th percentile of a normal distribution, in deviations."""

STEP_S = 0.1
"""How long one value of the pace holds."""

DRIFT_S = 1.0
"""How long the pace keeps its direction."""

DRAWN = 1024
"""Factors that are drawn at once."""


class ServiceNoise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much batch times vary: factors on the profile's own spread, and the drift of the pace.

    `batches` multiplies the spread that the profile was measured with. `drift` is the relative deviation of
    the pace. Both 0: batches take exactly what the profile says.
    """

    batches: Amount = 1.0  # factor on the profile's own spread; 0: none
    drift: Amount = 0.03  # relative deviation of a device's pace; 0: none

    @property
    def is_on(self) -> bool:
        """Whether anything varies."""
        return self.batches > 0.0 or self.drift > 0.0


class NoiseSource:
    """Draws the factors of one server; the same seed gives the same factors."""

    def __init__(self, noise: ServiceNoise, spread: float, seed: tuple[int, ...]) -> None:
        self._rng = np.random.default_rng(seed)
        self._sigma = log(1.0 + noise.batches * spread) / DECILES
        self._drift = noise.drift
        self._kept = exp(-STEP_S / DRIFT_S)
        self._factors: list[float] = []
        self._paces: list[float] = []
        self._wander = 0.0

    def factor(self, now_s: float) -> float:
        """Return how many times as long as usual a batch takes that begins now."""
        if not self._factors:
            drawn = self._rng.standard_normal(DRAWN) * self._sigma - 0.5 * self._sigma**2
            self._factors = np.exp(drawn).tolist()
        step = int(now_s / STEP_S)
        while step >= len(self._paces):
            self._go_on()
        return self._factors.pop() * self._paces[step]

    def _go_on(self) -> None:
        """Draw the pace of the next time steps."""
        turns = self._rng.standard_normal(DRAWN).tolist()
        for turn in turns:
            self._wander = self._kept * self._wander + sqrt(1.0 - self._kept**2) * turn
            self._paces.append(exp(self._drift * self._wander - 0.5 * self._drift**2))


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


# -- A profile as stored in a file: what one model's steps cost on one device.


class ProfileRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file format of a Profile, with a description of the device it was measured on.

    `latency_s[k][c][b]`, `energy_j[k][b]`: k counts `steps`, c `concurrency`, b `batches`; `instance_bytes`
    and `load_s` count `places`. `spread` is the relative spread of repeated latencies (90th over 10th
    percentile, minus 1), averaged over the table.
    """

    name: str
    model: str
    source: str
    device: dict[str, str]
    steps: list[Step]
    places: list[tuple[CountOrZero, CountOrZero]]
    batches: tuple[Count, ...]
    concurrency: tuple[Count, ...]
    latency_s: list[list[list[PositiveSeconds]]]
    energy_j: list[list[Amount]]
    instance_bytes: list[Bytes]
    load_s: list[Seconds]
    idle_w: Amount
    element_bytes: Count
    energy_source: str = ""
    spread: Amount = 0.0
    format: Literal["slim-profile-2"] = "slim-profile-2"

    def profile(self, model: ServedModel) -> Profile:
        """Return the profile that this record describes, for one of a cluster's models."""
        self._check(model)
        keys = [model.keys[step] for step in self.steps]
        places = [(model.number, *place) for place in self.places]
        return Profile(
            name=self.name,
            source=self.source,
            batches=self.batches,
            concurrency=self.concurrency,
            latency_s=dict(zip(keys, self.latency_s, strict=True)),
            energy_j=dict(zip(keys, self.energy_j, strict=True)),
            instance_bytes=dict(zip(places, self.instance_bytes, strict=True)),
            load_s=dict(zip(places, self.load_s, strict=True)),
            idle_w=self.idle_w,
            element_bytes=self.element_bytes,
            energy_source=self.energy_source,
            spread=self.spread or MEASURED_SPREAD,
        )

    def _check(self, model: ServedModel) -> None:
        if sorted(self.steps) != sorted(model.keys):
            raise DataError(
                f"profile '{self.name}' was measured for model '{self.model}' with {len(self.steps)} steps; "
                f"model '{model.name}' has {len(model.keys)} of its own: measure them with slim profile"
            )
        steps, places = len(self.steps), len(self.places)
        lengths: Mapping[str, tuple[int, int]] = {
            "latency_s": (len(self.latency_s), steps),
            "energy_j": (len(self.energy_j), steps),
            "instance_bytes": (len(self.instance_bytes), places),
            "load_s": (len(self.load_s), places),
        }
        for name, (entries, wanted) in lengths.items():
            if entries != wanted:
                raise DataError(f"profile '{self.name}': {name} has {entries} entries, {wanted} are needed")


def record_of(profile: Profile, model: ServedModel) -> ProfileRecord:
    """Write one model's part of a profile down."""
    part = profile.part(model.number)
    steps, places = list(model.keys), [(segment, choice) for segment, choice in model.spec.places()]
    return ProfileRecord(
        name=part.name,
        model=model.name,
        source=part.source,
        device={},
        steps=steps,
        places=places,
        batches=part.batches,
        concurrency=part.concurrency,
        latency_s=[[list(row) for row in part.latency_table_s[model.keys[step]]] for step in steps],
        energy_j=[list(part.energy_table_j[model.keys[step]]) for step in steps],
        instance_bytes=[part.instance_bytes[model.number, *place] for place in places],
        load_s=[part.load_s[model.number, *place] for place in places],
        idle_w=part.idle_w,
        element_bytes=part.element_bytes,
        energy_source=part.energy_source,
        spread=part.spread,
    )


# -- A profile modelled from public figures of a device, by the roofline model.

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONCURRENCY = (1, 2, 4, 8)


def modelled_profile(device: Device, model: ServedModel) -> Profile:
    """Model a profile: t(b, c) = launch + c · b · max(flop / rate, bytes / bandwidth).

    Concurrent instances overlap their launches and share the arithmetic. Power rises from idle to peak
    with the share of time that the arithmetic units are busy.
    """
    busy_s = {key: _busy_s(device, model, key) for key in model.keys.values()}
    latency_s = {
        key: [[device.launch_s + c * b * busy for b in BATCHES] for c in CONCURRENCY]
        for key, busy in busy_s.items()
    }
    energy_j = {
        key: [
            (device.peak_w - device.idle_w) * b * busy
            + 0.1 * (device.peak_w - device.idle_w) * device.launch_s
            for b in BATCHES
        ]
        for key, busy in busy_s.items()
    }
    figures = model.figures
    memory = {  # weights and the workspace of the largest batch
        (model.number, *place): device.element_bytes
        * (figures.weights[place] + 4 * BATCHES[-1] * figures.workspace[place])
        for place in model.spec.places()
    }
    return Profile(
        name=device.name,
        source=f"modelled from public figures: {device.source}",
        batches=BATCHES,
        concurrency=CONCURRENCY,
        latency_s=latency_s,
        energy_j=energy_j,
        instance_bytes=memory,
        load_s={at: device.load_fixed_s + size / device.load_bytes_per_s for at, size in memory.items()},
        idle_w=device.idle_w,
        element_bytes=device.element_bytes,
    )


def _busy_s(device: Device, model: ServedModel, key: Key) -> float:
    """Return the time per example on the arithmetic units or the memory bus, whichever is longer."""
    step = model.figures.steps[key.step]
    return max(
        2 * step.macs / (device.efficiency * device.peak_flop_per_s),
        step.moved * device.element_bytes / device.memory_bytes_per_s,
    )


# -- The batch limit that a device's profile suggests: larger batches would give hardly more throughput.

ENOUGH = 0.97
"""A smaller batch is good enough if it gives this share of the best throughput."""

DEADLINE_SHARE = 1 / 3
"""A batch takes at most this share of the deadline: a request may wait for one batch and run in the next."""


def useful_batch(profile: Profile, models: Sequence[ServedModel], longest_s: float) -> int:
    """Return the smallest measured size that gives nearly the best throughput at every model's widest plan.

    Sizes that take longer than `longest_s` do not count; 0 means no limit.
    """
    return max(_of_model(profile, model, longest_s) for model in models)


def _of_model(profile: Profile, model: ServedModel, longest_s: float) -> int:
    legs = model.legs(model.spec.widest)
    key = onward(legs[0], tuple(leg.choice for leg in legs[1:]))
    took_s = {size: profile.latency_s(key, size) for size in profile.part(model.number).batches}
    sizes = [size for size in took_s if not 0.0 < longest_s < took_s[size]] or [min(took_s)]
    best_per_s = max(size / took_s[size] for size in sizes)
    return min(size for size in sizes if size / took_s[size] >= ENOUGH * best_per_s)
