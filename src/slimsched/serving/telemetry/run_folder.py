"""A run folder: everything that one run writes and a report needs.

run.json         what was run: kind, title, seed, the configuration with all options filled in, faults, and
                 the models' names, segments, choices and plans
summary.json     one row of figures for each router or policy
arrays.npz       the data for pictures, by '<row>/<name>'; no pickle
events.jsonl.gz  the event log (one router only)
frames.jsonl.gz  the frames over time (one router only); the dashboard opens it
"""

import gzip
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched import __version__
from slimsched.core.config import UNREADABLE, Count, DataError, Seed
from slimsched.core.log import EVENTS
from slimsched.serving.domain.cluster import Cluster, Fault
from slimsched.serving.domain.model import ModelOutline
from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum, sure_accuracy_at
from slimsched.serving.telemetry.live_view import Frame
from slimsched.serving.telemetry.meter import Trace

# -- Curves of the fluid bound: over arrival rates, solved once and then interpolated, and over energy.

POINTS, SURE_POINTS = 32, 12
BUDGETS = 16


class BoundCurve:
    """Correct answers per second by arrival rate. The curve is concave, so interpolation is just below it."""

    def __init__(self, cluster: Cluster, shares: Sequence[float] = ()) -> None:
        most = max(capacity_per_s(cluster, model.spec.narrowest, model.number) for model in cluster.models)
        least = min(capacity_per_s(cluster, model.spec.widest, model.number) for model in cluster.models)
        self._rate_per_s: NDArray[np.float64] = np.geomspace(0.5 * least, 1.05 * most, POINTS)
        self._correct_per_s = np.array(
            [
                rate * fluid_optimum(cluster, float(rate), shares=shares or None).accuracy
                for rate in self._rate_per_s
            ]
        )

        self._sure_rate_per_s = np.geomspace(0.5 * least, 1.05 * most, SURE_POINTS)
        self._sure_per_s = np.array(
            [rate * sure_accuracy_at(cluster, float(rate), shares) for rate in self._sure_rate_per_s]
        )

    def accuracy(self, rate_per_s: float) -> float:
        """Return the best accuracy any router could reach; requests that cannot be served count as wrong."""
        return _at(rate_per_s, self._rate_per_s, self._correct_per_s)

    def sure_accuracy(self, rate_per_s: float) -> float:
        """Return the same for routers that stop when sure; 0 if no model says how sure it is."""
        return _at(rate_per_s, self._sure_rate_per_s, self._sure_per_s)


def _at(rate_per_s: float, rates_per_s: NDArray[np.float64], correct_per_s: NDArray[np.float64]) -> float:
    if rate_per_s <= rates_per_s[0]:
        return float(correct_per_s[0] / rates_per_s[0])
    return float(np.interp(rate_per_s, rates_per_s, correct_per_s)) / rate_per_s


def energy_bound(
    cluster: Cluster, rate_per_s: float, shares: Sequence[float] = ()
) -> dict[str, NDArray[np.float64]]:
    """Return the best accuracy by energy above idle, both per arrived request, as arrays for a run folder."""
    free = fluid_optimum(cluster, rate_per_s, shares=shares or None)
    budgets_w = np.linspace(0.0, free.power_w, BUDGETS)
    best = [
        fluid_optimum(cluster, rate_per_s, shares=shares or None, active_power_w=float(power)).accuracy
        for power in budgets_w
    ]
    return {"bound/energy_j": budgets_w / rate_per_s, "bound/accuracy": np.array(best)}


FRAMES = "frames.jsonl.gz"
REPORT = "report.html"


class About(Struct, frozen=True, kw_only=True):
    """What was run; `models` holds the served models in the order of their numbers."""

    kind: Literal["requests", "jobs"]
    title: str
    seed: Seed
    config: dict[str, Any]
    seeds: Count = 1
    faults: tuple[Fault, ...] = ()
    models: tuple[ModelOutline, ...] = ()
    slim: str = __version__


class Run(Struct, frozen=True, kw_only=True):
    """The contents of a run folder."""

    about: About
    rows: list[dict[str, Any]]
    arrays: dict[str, NDArray[Any]]
    frames: list[Frame]

    @property
    def routers(self) -> list[str]:
        """The router of each row."""
        return [str(row["router"]) for row in self.rows]

    def seconds(self, row: int) -> float:
        """Return the length of a run, including its warm-up."""
        return float(self.rows[row]["seconds"] + self.about.config.get("load", {}).get("warmup_s", 0.0))


def make_folder(folder: Path) -> Path:
    """Make the folder for a run; remove the log, the frames and the report of an earlier one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write a run to {folder}: {error.strerror}; choose another folder") from None
    for stale in (folder / EVENTS, folder / FRAMES, folder / REPORT, *folder.glob("report-*.png")):
        stale.unlink(missing_ok=True)
    return folder


def write_run(
    folder: Path,
    about: About,
    rows: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, NDArray[Any]],
    frames: Sequence[Frame] = (),
) -> None:
    """Write a run to its folder; the same run gives the same bytes."""
    (folder / "run.json").write_bytes(_pretty(about))
    (folder / "summary.json").write_bytes(_pretty(list(rows)))
    np.savez_compressed(folder / "arrays.npz", **dict(arrays), allow_pickle=False)
    if frames:
        lines = b"".join(msgspec.json.encode(frame) + b"\n" for frame in frames)
        (folder / FRAMES).write_bytes(gzip.compress(lines, compresslevel=6, mtime=0))


def read_run(folder: Path) -> Run:
    """Read a run from its folder."""
    if not (folder / "run.json").is_file():
        raise DataError(f"no run at {folder}: it has no run.json; leave one with slim simulate --out FOLDER")
    try:
        with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return Run(
            about=msgspec.json.decode((folder / "run.json").read_bytes(), type=About),
            rows=msgspec.json.decode((folder / "summary.json").read_bytes(), type=list[dict[str, Any]]),
            arrays=arrays,
            frames=_frames(folder / FRAMES),
        )
    except (*UNREADABLE, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"the run at {folder} is damaged: {error}; run it again with --out") from None


def trace_arrays(traces: Sequence[Trace], arrival_s: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Return the arrival times, and by row the answers: when, how long, by which plan of which model."""
    return {"arrival_s": arrival_s} | {
        f"{row}/{name}": values
        for row, trace in enumerate(traces)
        for name, values in (
            ("answered_s", trace.answers.answered_s),
            ("latency_s", trace.answers.latency_s.astype(np.float32)),
            ("model", trace.answers.model.astype(np.uint8)),
            ("plan", trace.answers.plan.astype(np.uint16)),
        )
    }


def _frames(path: Path) -> list[Frame]:
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=Frame) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
