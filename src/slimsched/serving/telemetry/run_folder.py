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
from slimsched.serving.gateway.bounds import fluid_optimum
from slimsched.serving.telemetry.live_view import Frame
from slimsched.serving.telemetry.meter import Trace

BUDGETS = 16


def energy_bound(
    cluster: Cluster, rate_per_s: float, shares: Sequence[float] = ()
) -> dict[str, NDArray[np.float64]]:
    """Return the best accuracy by energy above idle, both per arrived request, as arrays for a run folder."""
    free = fluid_optimum(cluster, rate_per_s, shares=shares)
    budgets_w = np.linspace(0.0, free.power_w, BUDGETS)
    best = [
        fluid_optimum(cluster, rate_per_s, shares=shares, active_power_w=float(power)).accuracy
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
    kinds = {"answered_s": np.float64, "latency_s": np.float32, "model": np.uint8, "plan": np.uint16}
    return {"arrival_s": arrival_s} | {
        f"{row}/{name}": getattr(trace.answers, name).astype(kind)
        for row, trace in enumerate(traces)
        for name, kind in kinds.items()
    }


def _frames(path: Path) -> list[Frame]:
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=Frame) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
