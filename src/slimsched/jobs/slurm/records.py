"""What Slurm knows about jobs that have run: `sacct --parsable2`, or `squeue --json --states=all`."""

import csv
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import DataError, read_packed_text, read_seconds
from slimsched.jobs.domain import gpu_count
from slimsched.jobs.slurm.wire import SlurmJob, Status
from slimsched.jobs.traces.clusters import host_names

COLUMNS = (
    "JobID,JobName,User,Partition,Submit,Eligible,Start,End,State,AllocTRES,TimelimitRaw,NodeList,Comment"
)
"""What to ask sacct for."""
NEEDED = ("JobID", "Submit", "Start", "End", "AllocTRES")
UNKNOWN = ("", "Unknown", "None", "N/A")
STEP = "a step"


class SlurmRecord(Struct, frozen=True, kw_only=True):
    """One job that held GPUs; times are Unix seconds."""

    id: str  # with #2, #3 … for further runs of a job that was requeued
    user: str
    name: str
    eligible_s: float  # since when it could have started
    start_s: float
    end_s: float | None  # None while it still runs
    gpus: int  # in all
    machines: tuple[str, ...]  # where it ran; empty if the record does not say
    limit_s: float | None  # its time limit, if it has one
    comment: str = ""  # may name its model


class SlurmRecords(Struct, frozen=True, kw_only=True):
    """The records of a file."""

    jobs: list[SlurmRecord]
    left_out: dict[str, int]  # lines that are none of ours, by reason


def read_slurm_records(path: Path, *, partition: str | None = None) -> SlurmRecords:
    """Read the records of jobs with GPUs, of one partition or of all."""
    if not path.is_file():
        raise DataError(f"no records at {path}; make them with: sacct -a -S now-30days -P -o {COLUMNS}")
    text = read_packed_text(path)
    read = _squeue_records if text.lstrip().startswith("{") else _sacct_records
    records = read(text, path, partition)
    if not records.jobs:
        raise DataError(
            f"{path} holds no job that started with GPUs; sacct names them in AllocTRES where slurm.conf has "
            "AccountingStorageTRES=gres/gpu"
        )
    return records


def _sacct_records(text: str, path: Path, partition: str | None) -> SlurmRecords:
    rows = csv.DictReader(io.StringIO(text), delimiter="|", quoting=csv.QUOTE_NONE)
    missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
    if missing:
        raise DataError(f"{path} has no column {missing[0]}; make it with: sacct -a -P -o {COLUMNS}")
    jobs: list[SlurmRecord] = []
    left_out, seen = Counter[str](), Counter[str]()
    for number, raw in enumerate(rows, start=2):
        row = {key: value or "" for key, value in raw.items() if key}
        reason = _left_out(row, partition)
        if reason:
            left_out[reason] += 1
            continue
        seen[row["JobID"]] += 1
        try:
            jobs.append(_record(row, seen[row["JobID"]]))
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path} line {number}: {error}; mend or remove the line") from None
    left_out.pop(STEP, None)
    return SlurmRecords(jobs=jobs, left_out=left_out)


def _squeue_records(text: str, path: Path, partition: str | None) -> SlurmRecords:
    """Read what slurmctld itself still remembers, where there is no accounting database."""
    try:
        replies = msgspec.json.decode(text.encode())["jobs"]
        jobs = [SlurmJob.from_reply(reply) for reply in replies]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no output of squeue --json: {error}; make it again") from None
    left_out = Counter[str]()
    records = []
    for job in jobs:
        started = job.start_s is not None and job.status is not Status.QUEUED
        row = {"JobID": job.id, "Partition": job.partition, "Start": "x" * started}
        reason = _left_out({**row, "AllocTRES": f"gres/gpu={job.gpus}"}, partition)
        if reason or job.start_s is None:
            left_out[reason] += 1
            continue
        eligible_s = max(job.submit_s, job.eligible_s or 0.0)
        records.append(
            SlurmRecord(
                id=job.id,
                user=job.user or "unknown",
                name=job.name,
                eligible_s=min(eligible_s, job.start_s),
                start_s=job.start_s,
                end_s=job.end_s if job.status is Status.GONE else None,
                gpus=job.gpus,
                machines=host_names(job.nodes),
                limit_s=job.limit_s,
                comment=job.comment,
            )
        )
    return SlurmRecords(jobs=records, left_out=left_out)


def _left_out(row: Mapping[str, str], partition: str | None) -> str:
    """Say why a row is no job of ours; empty if it is one."""
    if "." in row["JobID"]:
        return STEP
    if partition is not None and partition not in row.get("Partition", "").split(","):
        return "in another partition"
    if row["Start"] in UNKNOWN:
        return "never started"
    return "" if gpu_count(row["AllocTRES"]) else "without GPUs"


def _record(row: Mapping[str, str], run: int) -> SlurmRecord:
    submit_s, start_s = read_seconds(row["Submit"]), read_seconds(row["Start"])
    eligible = row.get("Eligible", "")
    eligible_s = submit_s if eligible in UNKNOWN else max(submit_s, read_seconds(eligible))
    end_s = None if row["End"] in UNKNOWN else max(start_s, read_seconds(row["End"]))
    nodes, limit = row.get("NodeList", ""), row.get("TimelimitRaw", "")
    return SlurmRecord(
        id=row["JobID"] if run == 1 else f"{row['JobID']}#{run}",  # requeued: sacct --duplicates
        user=row.get("User", "") or "unknown",
        name=row.get("JobName", ""),
        eligible_s=min(eligible_s, start_s),
        start_s=start_s,
        end_s=end_s,
        gpus=gpu_count(row["AllocTRES"]),
        machines=() if nodes.startswith("None") else host_names(nodes),
        limit_s=60.0 * float(limit) if limit.isdecimal() else None,  # in minutes
        comment=row.get("Comment", ""),
    )
