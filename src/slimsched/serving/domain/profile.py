"""A profile: what each key costs on a device, by batch size and concurrency.

Profiles are measured, or modelled from a data sheet by the roofline model; files hold them as records. In
service a batch may take longer, and equal batches differ: the extra cost and the noise are here too.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
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
from slimsched.core.statistics import Fading, follow
from slimsched.models.spec import Step
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Key, onward


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
    """Draws the factors of one server; the same seed gives the same factors.

    A batch takes  profile · e^(σ·z) · pace(t).  z is drawn anew for each batch. The pace wanders around 1 and
    keeps its direction for about a second, because slow spells of a device last longer than a batch.
    """

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
            for turn in self._rng.standard_normal(DRAWN).tolist():
                self._wander = self._kept * self._wander + sqrt(1.0 - self._kept**2) * turn
                self._paces.append(exp(self._drift * self._wander - 0.5 * self._drift**2))
        return self._factors.pop() * self._paces[step]


Place = tuple[int, int, int]
"""(model, segment, choice): what an instance is loaded for."""

IDLE_W, ACTIVE_W = 5.0, 7.0
"""Power of a core that no meter can read: idle (assumed), and above that while busy.

AMD states 225 W for the 32 cores of an EPYC 7543, 7 W each.
"""

WHILE_BUSY = " W while busy"
"""In the source of energy that is one power times device time: least energy is least time there."""

AT_START = "measured at start"
"""How the source of a profile in the user's cache begins; all others hold as they are, whatever changes."""

SLOWED = " ÷ "
"""Between the name of a device and how many times slower it is made."""


@dataclass(eq=False, repr=False, kw_only=True)
class Profile:
    """Latency, active energy and memory of one model on a device.

    `latency_table_s[key][i][j]` is the time of a batch of `batches[j]` examples while `concurrency[i]`
    batches run on the device at once (including this one). `energy_table_j[key][j]` is what it draws above
    idle. Latency and energy are interpolated between measured batch sizes, and grow in proportion beyond.

    `joined` makes one profile of several models on the same device.
    """

    name: str
    source: str
    batches: tuple[int, ...]
    concurrency: tuple[int, ...]
    latency_table_s: Mapping[Key, Sequence[Sequence[float]]]
    energy_table_j: Mapping[Key, Sequence[float]]
    instance_bytes: Mapping[Place, int]
    load_s: Mapping[Place, float]
    idle_w: float
    element_bytes: int
    energy_source: str = ""
    """Where the figures of energy come from: latency may be measured while energy is modelled."""
    spread: float = MEASURED_SPREAD
    """How much longer equal batches take at the 90th percentile than at the 10th, relative."""

    def __post_init__(self) -> None:
        self.energy_source = self.energy_source or self.source.partition(":")[0]
        self._check()
        self._latency: dict[Key, list[list[float]]] = {}  # [batch - 1][concurrency - 1]
        self._energy: dict[Key, list[float]] = {}
        for key, rows in self.latency_table_s.items():
            by_concurrency = _dense(self.batches, np.array(rows, dtype=float))
            self._latency[key] = _dense(self.concurrency, by_concurrency.T).tolist()
            energy_j = np.array(self.energy_table_j[key], dtype=float)
            self._energy[key] = _dense(self.batches, energy_j).tolist()
        self.top_concurrency = max(self.concurrency)
        self.parts: tuple[Profile, ...] = (self,)
        """One profile per model."""

    @staticmethod
    def joined(parts: "Sequence[Profile]") -> "Profile":
        """Join the profiles of several models on one device; the first gives the device's own figures."""
        if len(parts) == 1:
            return parts[0]
        whole = copy(parts[0])
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
        latency_s = {
            k: [[v * factor for v in row] for row in rows] for k, rows in self.latency_table_s.items()
        }
        load_s = {place: seconds * factor for place, seconds in self.load_s.items()}
        name = f"{self.name}{SLOWED}{factor:g}"
        return replace(self, name=name, latency_table_s=latency_s, load_s=load_s)

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
        for name, values in (("batches", self.batches), ("concurrency", self.concurrency)):
            if not values or list(values) != sorted(set(values)) or values[0] != 1:
                raise DataError(f"{where}: {name} must rise from 1, got {list(values)}")
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
        same = ("name", "source", "batches", "concurrency", "idle_w", "element_bytes", "energy_source")
        return Profile(
            latency_table_s=dict(zip(keys, self.latency_s, strict=True)),
            energy_table_j=dict(zip(keys, self.energy_j, strict=True)),
            instance_bytes=dict(zip(places, self.instance_bytes, strict=True)),
            load_s=dict(zip(places, self.load_s, strict=True)),
            spread=self.spread or MEASURED_SPREAD,
            **{name: getattr(self, name) for name in same},
        )

    def _check(self, model: ServedModel) -> None:
        if sorted(self.steps) != sorted(model.keys):
            raise DataError(
                f"profile '{self.name}' was measured for model '{self.model}' with {len(self.steps)} steps; "
                f"model '{model.name}' has {len(model.keys)} of its own: measure them with slim profile"
            )
        steps, places = len(self.steps), len(self.places)
        lengths = {"latency_s": steps, "energy_j": steps, "instance_bytes": places, "load_s": places}
        for name, wanted in lengths.items():
            if (entries := len(getattr(self, name))) != wanted:
                raise DataError(f"profile '{self.name}': {name} has {entries} entries, {wanted} are needed")


def record_of(profile: Profile, model: ServedModel) -> ProfileRecord:
    """Write one model's part of a profile down."""
    part = profile.part(model.number)
    steps, places = list(model.keys), [(segment, choice) for segment, choice in model.spec.places()]
    same = ("name", "source", "batches", "concurrency", "idle_w", "element_bytes", "energy_source", "spread")
    return ProfileRecord(
        model=model.name,
        device={},
        steps=steps,
        places=places,
        latency_s=[[list(row) for row in part.latency_table_s[model.keys[step]]] for step in steps],
        energy_j=[list(part.energy_table_j[model.keys[step]]) for step in steps],
        instance_bytes=[part.instance_bytes[model.number, *place] for place in places],
        load_s=[part.load_s[model.number, *place] for place in places],
        **{name: getattr(part, name) for name in same},
    )


BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONCURRENCY = (1, 2, 4, 8)


def modelled_profile(device: Device, model: ServedModel) -> Profile:
    """Model a profile by the roofline model: t(b, c) = launch + c · b · max(flop / rate, bytes / bandwidth).

    Concurrent instances overlap their launches and share the arithmetic. Power rises from idle to peak
    with the share of time that the arithmetic units are busy.
    """
    busy_s: dict[Key, float] = {}
    for key in model.keys.values():  # the arithmetic units or the memory bus, whichever takes longer
        step = model.figures.steps[key.step]
        arithmetic_s = 2 * step.macs / (device.efficiency * device.peak_flop_per_s)
        busy_s[key] = max(arithmetic_s, step.moved * device.element_bytes / device.memory_bytes_per_s)
    latency_s = {
        key: [[device.launch_s + c * b * busy for b in BATCHES] for c in CONCURRENCY]
        for key, busy in busy_s.items()
    }
    active_w = device.peak_w - device.idle_w
    energy_j = {
        key: [active_w * b * busy + 0.1 * active_w * device.launch_s for b in BATCHES]
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
        latency_table_s=latency_s,
        energy_table_j=energy_j,
        instance_bytes=memory,
        load_s={at: device.load_fixed_s + size / device.load_bytes_per_s for at, size in memory.items()},
        idle_w=device.idle_w,
        element_bytes=device.element_bytes,
    )


ENOUGH = 0.97
"""A smaller batch is good enough if it gives this share of the best throughput."""

DEADLINE_SHARE = 1 / 3
"""A batch takes at most this share of the deadline: a request may wait for one batch and run in the next."""


def useful_batch(profile: Profile, models: Sequence[ServedModel], longest_s: float) -> int:
    """Return the largest batch that is useful for some plan: a model's widest, a middle, or its narrowest."""
    return max(
        useful_size(profile, onward(first, tuple(leg.choice for leg in rest)), longest_s)
        for model in models
        for plan in (model.spec.widest, model.tree.middle, model.spec.narrowest)
        for first, *rest in [model.legs(plan)]
    )


def useful_size(profile: Profile, key: Key, longest_s: float) -> int:
    """Return the smallest batch size, measured or a power of two, that gives nearly the best throughput.

    Sizes that take longer than `longest_s` do not count; 0 means no limit.
    """
    measured = profile.part(key.model).batches
    usual = [1 << power for power in range(measured[-1].bit_length())]
    took_s = {size: profile.latency_s(key, size) for size in {*measured, *usual}}
    sizes = [size for size in took_s if not 0.0 < longest_s < took_s[size]] or [min(took_s)]
    best_per_s = max(size / took_s[size] for size in sizes)
    return min(size for size in sizes if size / took_s[size] >= ENOUGH * best_per_s)


# -- How fast a server really is, learned from what it has finished.
#
# A profile is measured on an idle device with one key at a time. In service a batch also pays for messages,
# cold caches and neighbours, and devices slow down. Three figures tell by how much, each for its own
# question:
#
# * batch time: how long does a batch take? Prices of routers follow it, and what the local scheduler begins.
# * pace: how much work gets done while there is work? Admission counts on it. It knows what batch times
#   cannot: half-empty batches, batches that share the device, and the share of it that other gateways have.
# * lateness: how much longer do blocks take than the work sent before them? The learned router reads it.
#
# There are two instances of the batch time for each server, because they know different things. The gateway's
# is told of its own blocks, a message late, and wants prices that do not jump: it follows a hundred batches,
# and learns nothing where batches share a device. The local scheduler's is told of all batches of the device
# at once, whichever gateway sent them, and asks when the next one ends beside the neighbours that it has now:
# it follows ten. Were it told by the gateway instead, what it drops would depend on how late messages are.

PRIOR = 0.2
"""How many batches that take as long as profiled are assumed at the start, as a share of those followed."""

SAME = 0.1
"""Batches whose profiled times differ by less than about this share do not show the overhead."""

MOST = 2.0
"""How many times slower than expected a batch counts at most: one hiccup says little about the next."""

LEAST_SLOWDOWN = 0.5
"""No more of a batch's time than leaves this factor on its profile counts as overhead."""


class BatchTime:
    """The time of a server's batches: overhead_s + slowdown · profiled, by least squares of relative errors.

    With u = 1 / profiled and r = took / profiled, the equation is r = slowdown + overhead · u: a line. Where
    batches are too much alike to tell the two apart, all of it counts as slowdown.
    """

    def __init__(self, share: float) -> None:
        """`share` is what the last batch counts."""
        self.overhead_s = 0.0
        """Time that every batch takes, whatever it has to do."""
        self.slowdown = 1.0
        """Factor on the profiled time."""
        self._prior = PRIOR / share
        self._u, self._r, self._uu, self._ur = (Fading(share=share) for _ in range(4))

    def of(self, profiled_s: float) -> float:
        """Return the time that a batch will probably take."""
        return self.overhead_s + self.slowdown * profiled_s

    def note(self, profiled_s: float, took_s: float) -> None:
        """Learn from a batch that took `took_s`."""
        if profiled_s <= 0.0 or took_s <= 0.0:
            return
        u = 1.0 / profiled_s
        r = min(took_s * u, MOST * (self.slowdown + self.overhead_s * u))
        if not self._u.weight:
            for mean, value in ((self._u, u), (self._r, 1.0), (self._uu, u * u), (self._ur, u)):
                mean.total, mean.weight = self._prior * value, self._prior
        self._u.note(u)
        self._r.note(r)
        self._uu.note(u * u)
        self._ur.note(u * r)
        u, r = self._u.mean, self._r.mean  # the line; as long as all batches are alike, it is level
        spread = max(0.0, self._uu.mean - u * u) + (SAME * u) ** 2
        slope = (self._ur.mean - u * r) / spread
        self.overhead_s = min(max(0.0, slope), max(0.0, r - LEAST_SLOWDOWN) / u)
        self.slowdown = r - self.overhead_s * u


SHARE = 0.01
"""What the last batch counts in the gateway's batch time, and in the mean size of batches."""

FIRST_BATCH = 8.0
"""How many examples a batch is assumed to have before any has run."""

MEMORY_S = 1.0
"""For the pace, work from this long ago counts about a third; time without work does not pass."""

PRIOR_S = 0.2
"""How much work at the profile's own pace is assumed at the start."""

LATENESS_S = 0.01
"""Added to times before they are compared, so that messages and scheduling steps count little."""

LATENESS_SHARE = 0.05
"""Weight of the last block in a server's lateness: it follows about the last twenty blocks."""


class ServerSpeed:
    """What a gateway knows about how fast one server is."""

    def __init__(self) -> None:
        self.batch = BatchTime(SHARE)
        """What batches take; nothing is learned where they share the device."""
        self._examples = Fading(FIRST_BATCH, 1.0, share=SHARE), Fading(FIRST_BATCH, 1.0, share=SHARE)
        self.lateness = follow(1.0, LATENESS_SHARE)
        """Time that blocks took lately over the time that the work sent before them takes by profile."""
        self._work = Fading(1.0, PRIOR_S)  # profiled time of the work done, over the time with work
        self._since_s: float | None = None  # since when there is work that is not counted yet

    @property
    def pace(self) -> float:
        """Work done over the time it took: 1 as profiled, 0.5 if everything takes twice as long."""
        return self._work.mean

    def extra_s(self, *, further: bool) -> float:
        """Return what the overhead adds to an example of a first plan, or of one that follows an answer.

        The overhead is paid once per batch, and plans that go on after an answer run in smaller batches.
        """
        return self.batch.overhead_s / self._examples[further].mean

    def ran(self, profiled_s: float, took_s: float, examples: int, *, further: bool) -> None:
        """Learn from a batch that had the device to itself, and whether its examples had an answer before."""
        self._examples[further].note(examples)
        self.batch.note(profiled_s, took_s)

    def began(self, now_s: float) -> None:
        """Note that the server has work now."""
        if self._since_s is None:
            self._since_s = now_s

    def worked(self, full_s: float, now_s: float) -> None:
        """Note a full batch of a backlogged server, which takes `full_s` by profile."""
        if self._since_s is None:
            return
        passed_s = max(1e-6, now_s - self._since_s)
        self._work.fade(exp(-passed_s / MEMORY_S))
        self._work.note(full_s, passed_s)
        self._since_s = now_s

    def worked_in_part(self, alone_s: float, now_s: float, *, is_idle: bool) -> None:
        """Note a batch that takes `alone_s` alone, by a server with little or nothing else to do.

        Its batches are small and cost more per example, so it only shows whether they take as long as they
        should.
        """
        if self._since_s is not None:
            self.worked(min(alone_s, now_s - self._since_s), now_s)
        if is_idle:
            self._since_s = None

    def returned(self, took_s: float, expected_s: float) -> None:
        """Note how long a block took, and how long it should have taken by profile."""
        self.lateness.note((took_s + LATENESS_S) / (expected_s + LATENESS_S))

    def lost(self) -> None:
        """Note that the server is gone with its work; how late it was says nothing about its next life."""
        self._since_s = None
        self.lateness = follow(1.0, LATENESS_SHARE)
