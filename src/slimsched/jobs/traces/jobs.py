"""Traces of jobs: files in several formats, told apart by their columns, and jobs drawn to resemble them."""

import csv
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.core.config import (
    LARGEST_BYTES,
    LONGEST_S,
    ConfigError,
    DataError,
    convert,
    read_packed_text,
    read_seconds,
)
from slimsched.jobs.domain import Job, gpu_count

# -- Jobs that look like Helios' when no trace is at hand.
#
# Fitted to the 125,303 GPU jobs of Helios Venus (CC-BY 4.0) by benchmarks/measured_models.py: the share of
# each GPU demand, and quantiles of the service time by class of demand and of the gaps between arrivals. They
# are drawn by inverse transform (linear between quantiles on a logarithmic scale). The longest gap is cut so
# that the mean agrees.

DEMANDS = {
    1: 0.51838, 2: 0.05546, 3: 0.00161, 4: 0.07258, 5: 0.00078, 6: 0.00164, 7: 0.00197, 8: 0.24734,
    16: 0.04159, 24: 0.00899, 32: 0.02717, 40: 0.00287, 48: 0.00254, 56: 0.00176, 64: 0.00233, 72: 0.00077,
    80: 0.0015, 88: 0.00033, 96: 0.00059, 104: 0.00051, 112: 0.00041, 120: 0.00151, 128: 0.00375,
    136: 0.00038, 144: 0.00034, 152: 0.00094, 160: 0.00181,
}  # fmt: skip
QUANTILES = (
    0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99,
    0.995, 1,
)  # fmt: skip
SERVICE_S = {
    1: (1, 2, 6, 17, 45, 89, 129, 190, 312, 682, 1180, 2040, 3080, 8450, 15700, 33400, 57500, 95100, 173e3,
        173e3, 173e3),
    7: (1, 2, 6, 16, 44, 86.5, 126, 195, 342, 956, 1880, 5090, 16500, 44600, 77100, 126e3, 173e3, 173e3,
        173e3, 173e3, 173e3),
    8: (1, 2, 8, 26, 70, 123, 166, 216, 382, 745, 1150, 2460, 5950, 25900, 42300, 65600, 114e3, 165e3, 173e3,
        173e3, 173e3),
    32: (1, 2, 7, 16, 58, 93, 184, 305, 598, 1990, 5380, 13800, 32e3, 61200, 86e3, 129e3, 173e3, 173e3,
         173e3, 173e3, 173e3),
    10**9: (1, 4, 5, 5, 8, 26, 69, 131, 217, 356, 481, 748, 1390, 4130, 9180, 31200, 75100, 138e3, 173e3,
            173e3, 173e3),
}  # fmt: skip
"""By the largest demand of the class."""
GAPS_S = (
    0, 0, 0, 1, 7, 17, 29, 44, 67, 96, 116, 142, 181, 250, 308, 411, 585, 769, 1220, 2060, 16000,
)  # fmt: skip


def generate_jobs(count: int, rng: Generator, *, largest: int = 10**9) -> list[Job]:
    """Draw `count` jobs with arrivals, none larger than `largest` GPUs."""
    if count < 1:
        raise ConfigError(f"{count} jobs cannot be generated; ask for at least 1")
    demands = np.array([gpus for gpus in DEMANDS if gpus <= largest])
    if not len(demands):
        raise ConfigError(f"no demand of Helios fits {largest} GPUs; allow at least 1")
    shares = np.array([DEMANDS[int(gpus)] for gpus in demands])
    gpus = rng.choice(demands, size=count, p=shares / shares.sum())
    arrival_s = np.cumsum(np.expm1(_draw(np.log1p(GAPS_S), rng.random(count))))
    arrival_s -= arrival_s[0]
    position = rng.random(count)
    service_s = np.empty(count)
    lower = 0
    for upper, quantiles in SERVICE_S.items():
        these = (gpus > lower) & (gpus <= upper)
        service_s[these] = np.exp(_draw(np.log(quantiles), position[these]))
        lower = upper
    return [
        Job(id=f"g{i}", arrival_s=round(float(a), 3), gpus=int(g), service_s=round(float(s), 3))
        for i, (a, g, s) in enumerate(zip(arrival_s, gpus, service_s, strict=True))
    ]


def _draw(quantiles: NDArray[np.float64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.interp(position, QUANTILES, quantiles))


Row = dict[str, str]

NAMED = {
    "helios": "traces/helios_venus_gpu_jobs_125k.csv.gz",
    "tiresias": "traces/tiresias_sim_inputs.tar.gz#60_job.csv",
}
"""Traces that go by a name: where they lie in the data folder."""


def locate_trace(name: str, data: Path | None) -> str:
    """The path of a trace given by name or path (`archive.tar.gz#member` names a file in an archive)."""
    if name not in NAMED:
        return name
    if data is None:
        raise DataError(f"trace '{name}' lies in the data folder; name it with --data or SLIM_DATA")
    return str(data / NAMED[name])


def read_job_trace(source: str) -> list[Job]:
    """Read a trace of any known kind, told apart by its header, in order of arrival."""
    text = _text(source)
    header = text.partition("\n")[0]
    delimiter = "|" if "|" in header else ","
    table = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    try:
        columns, rows = {name.strip() for name in table.fieldnames or ()}, list(table)
    except csv.Error as error:
        raise DataError(f"{source} is no table: {error}; mend or remove the line") from None
    read = next((reader for _, known, reader in READERS if known <= columns), None)
    if read is None:
        kinds = "; ".join(f"{name} ({', '.join(sorted(known))})" for name, known, _ in READERS)
        raise DataError(
            f"{source}: no job trace of a known format starts with '{header[:80]}'; give one of these formats"
            f", with these columns at least: {kinds}"
        )
    jobs: list[Job] = []
    for number, row in enumerate(rows, start=2):
        try:
            job = read(row, number)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, ConfigError) as error:
            raise DataError(f"{source} line {number}: {error}; mend or remove the line") from None
        if job is not None:
            jobs.append(job)
    if not jobs:
        raise DataError(f"{source} holds no job with GPUs; give a trace of GPU jobs")
    return _from_zero(jobs, source)


def _from_zero(jobs: Iterable[Job], source: str) -> list[Job]:
    """Sort by arrival, let the first arrive at 0, and insist that ids are unique."""
    ordered = sorted(jobs, key=lambda job: job.arrival_s)
    first_s = ordered[0].arrival_s
    if len({job.id for job in ordered}) != len(ordered):
        raise DataError(f"{source} names a job twice; give every job its own id")
    if ordered[-1].arrival_s - first_s > LONGEST_S:
        raise DataError(f"{source}: its jobs arrive over more than {LONGEST_S:g} s; give a part of it")
    if first_s == 0.0:
        return ordered
    return [msgspec.structs.replace(job, arrival_s=job.arrival_s - first_s) for job in ordered]


def _text(source: str) -> str:
    """The text of a plain or packed file, or of a member of an archive."""
    path_text, _, member = source.partition("#")
    path = Path(path_text)
    if not path.is_file():
        raise DataError(f"no trace at {path}; give a CSV, a name ({', '.join(NAMED)}) or 'generated'")
    try:
        if member:
            with tarfile.open(path) as archive:
                packed = archive.extractfile(member)
                if packed is None or archive.getmember(member).size > LARGEST_BYTES:
                    raise DataError(f"{path} holds no file {member} of at most {LARGEST_BYTES:,} bytes")
                return packed.read().decode()
        return read_packed_text(path)
    except KeyError:
        raise DataError(f"{path} holds no file {member}; look inside with: tar tf {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read as text, gzip or tar: {error}") from None


def _helios(row: Row, number: int) -> Job | None:
    gpus = int(row["gpu_count"])
    return _job(row["job_id"], float(row["arrival_s"]), gpus, float(row["service_sec"]))


def _tiresias(row: Row, number: int) -> Job | None:
    gpus, model = int(row["num_gpu"]), row["model_name"]
    return _job(row["job_id"], float(row["submit_time"]), gpus, float(row["duration"]), model=model)


def _philly(row: Row, number: int) -> Job | None:
    arrival_s, gpus = read_seconds(row["timestamp"]), int(float(row["num_gpus"]))
    return _job(str(number - 2), arrival_s, gpus, float(row["duration"]), tenant=row.get("cluster") or "")


def _pai(row: Row, number: int) -> Job | None:
    """Alibaba PAI's task table; plan_gpu is in hundredths of a GPU for each of inst_num instances."""
    if not row["start_time"] or not row["end_time"] or not row["plan_gpu"]:
        return None
    start_s, end_s = float(row["start_time"]), float(row["end_time"])
    gpus = -int(-float(row["inst_num"] or 1) * float(row["plan_gpu"]) // 100)
    name = f"{row['job_name']}/{row.get('task_name') or number}"
    return _job(name, start_s, gpus, end_s - start_s, tenant=row.get("user") or "")


def _sacct(row: Row, number: int) -> Job | None:
    """`sacct --parsable2 --format=JobID,Submit,Start,End,AllocTRES,User,TimelimitRaw`; steps are skipped."""
    gpus = gpu_count(row["AllocTRES"])
    if "." in row["JobID"] or not gpus or row["Start"] in ("", "Unknown") or row["End"] in ("", "Unknown"):
        return None
    limit = row.get("TimelimitRaw") or ""
    return _job(
        row["JobID"],
        read_seconds(row["Submit"]),
        gpus,
        read_seconds(row["End"]) - read_seconds(row["Start"]),
        tenant=row.get("User") or "",
        limit_s=60.0 * float(limit) if limit.isdigit() else None,
    )


def _job(
    name: str,
    arrival_s: float,
    gpus: int,
    service_s: float,
    *,
    model: str = "",
    tenant: str = "",
    limit_s: float | None = None,
) -> Job | None:
    """A job, or None when it needs no GPU."""
    if gpus < 1:
        return None
    fields = {"id": name, "arrival_s": arrival_s, "gpus": gpus, "service_s": service_s, "limit_s": limit_s}
    return convert({**fields, "model": model, "tenant": tenant}, Job, f"job '{name}'")


READERS: tuple[tuple[str, set[str], Callable[[Row, int], Job | None]], ...] = (
    ("Helios", {"job_id", "arrival_s", "service_sec", "gpu_count"}, _helios),
    ("Tiresias", {"job_id", "num_gpu", "submit_time", "model_name", "duration"}, _tiresias),
    ("Philly", {"timestamp", "duration", "num_gpus", "gpu_time", "cluster"}, _philly),
    ("Alibaba PAI", {"job_name", "inst_num", "start_time", "end_time", "plan_gpu"}, _pai),
    ("sacct --parsable2", {"JobID", "Submit", "Start", "End", "AllocTRES"}, _sacct),
)
"""The name of a format, the columns it is told by, and its reader."""
