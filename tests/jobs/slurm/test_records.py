"""What Slurm remembers about jobs that ran."""

from datetime import datetime
from pathlib import Path

import pytest

from slimsched.core.config import DataError
from slimsched.jobs.slurm.records import COLUMNS, read_slurm_records

HEAD = COLUMNS.replace(",", "|")
DAY = "2026-11-01T"
TRES = "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1"


def line(job: str, **fields: str) -> str:
    """A line of sacct, with what most jobs have."""
    row = {
        "JobID": job,
        "JobName": "train",
        "User": "ann",
        "Partition": "gpu",
        "Submit": f"{DAY}10:00:00",
        "Eligible": f"{DAY}10:05:00",
        "Start": f"{DAY}10:10:00",
        "End": f"{DAY}11:10:00",
        "State": "COMPLETED",
        "AllocTRES": TRES,
        "TimelimitRaw": "120",
        "NodeList": "n[1-2]",
        "Comment": "",
    } | fields
    return "|".join(row[name] for name in COLUMNS.split(","))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEAD, *lines)) + "\n")
    return path


def test_a_job_waits_from_when_it_may_run_and_holds_its_gpus_where_it_ran(tmp_path) -> None:
    (job,) = read_slurm_records(write(tmp_path / "sacct.txt", line("7"), line("7.batch"))).jobs
    start_s = datetime.fromisoformat(f"{DAY}10:10:00").timestamp()
    assert (job.id, job.user, job.gpus, job.machines) == ("7", "ann", 4, ("n1", "n2"))
    assert (job.start_s, job.start_s - job.eligible_s, job.end_s - job.start_s) == (start_s, 300.0, 3600.0)
    assert job.limit_s == 7200.0


def test_what_is_left_out_is_counted_by_reason(tmp_path) -> None:
    records = read_slurm_records(
        write(
            tmp_path / "sacct.txt",
            line("1"),
            line("2", Start="Unknown", End="Unknown"),
            line("3", AllocTRES="cpu=4"),
            line("4", Partition="debug"),
            line("5", End="Unknown", TimelimitRaw="UNLIMITED"),
            line("1", Submit=f"{DAY}12:00:00", Start=f"{DAY}12:30:00", End=f"{DAY}13:00:00"),
        ),
        partition="gpu",
    )
    assert records.left_out == {"never started": 1, "without GPUs": 1, "in another partition": 1}
    assert [job.id for job in records.jobs] == ["1", "5", "1#2"]
    assert (records.jobs[1].end_s, records.jobs[1].limit_s) == (None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("JobID|Submit\n1|x\n", "no column Start"),
        (f"{HEAD}\n{line('1', Submit='yesterday')}\n", "line 2"),
        (f"{HEAD}\n{line('1', AllocTRES='cpu=1')}\n", "AccountingStorageTRES=gres/gpu"),
        ('{"jobs": 3}', "no output of squeue --json"),
        ("{", "no output of squeue --json"),
    ],
)
def test_damaged_records_are_refused_in_one_line(text: str, says: str, tmp_path) -> None:
    (tmp_path / "records").write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        read_slurm_records(tmp_path / "records")
    assert "\n" not in str(caught.value)
