"""A log of a job run gives the same commands again; one that was changed by hand does not."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from jobs.workloads import OWN, SMALL, SPECS, decode_entries, job, job_lists
from slimsched.cli.jobs.app import app
from slimsched.core.config import DataError
from slimsched.core.log import EVENTS, Log, LogWriter, Replayed, replay
from slimsched.jobs.domain import fabric_named
from slimsched.jobs.scheduler.messages import (
    JobFinished,
    JobFoundRunning,
    JobSubmitted,
    Rebuilt,
    RefuseJob,
    StartJob,
)
from slimsched.jobs.setting import LiveScheduler, SchedulerSetting, machines_of
from slimsched.jobs.simulated.cluster import Failure, SimulatedJobs
from slimsched.jobs.telemetry import histories, pass_on
from slimsched.jobs.traces.models import TRAINING_MODELS


def setting(policy: str, *, engine: str = "simulated", **more) -> SchedulerSetting:
    machines = SMALL.machines if engine == "simulated" else ()
    known = {"fabric": fabric_named("congested"), "models": TRAINING_MODELS, "cluster": SMALL.name}
    return SchedulerSetting(engine=engine, policy=policy, machines=machines, **known, **more)


def replay_file(path: Path) -> tuple[Replayed, Log]:
    log = Log(path)
    return replay(log.entries(), machines_of(log.header.setting)), log


@pytest.mark.parametrize("policy", SPECS)
@settings(max_examples=3, deadline=None)
@given(jobs=job_lists())
def test_every_policy_replays(policy, jobs, tmp_path_factory) -> None:
    known = setting(policy)
    sensitivity = known.sensitivity()
    failures = [Failure(machine=SMALL.machines[0].name, at_s=3000.0, repair_s=500.0)]
    simulation = SimulatedJobs(
        scheduler=known.scheduler(sensitivity), sensitivity=sensitivity, jobs=jobs, failures=failures
    )
    entries = simulation.run()
    path = tmp_path_factory.mktemp("run") / EVENTS
    with LogWriter(path, known.header()) as writer:
        pass_on(entries, writer)
    result, log = replay_file(path)
    assert result.difference is None
    assert (result.entries, result.machines) == (len(entries), 1)
    assert log.ending is not None
    assert histories(decode_entries(Log(path).entries())) == histories(entries)


def simulate(folder: Path, *more: str) -> Path:
    """Leave a run folder by the command."""
    arguments = ["--jobs", "60", "--cluster", "racks-64", "--arrivals", "batch", "--out", str(folder)]
    result = CliRunner().invoke(app, ["simulate", *arguments, *more, "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    return folder / EVENTS


@pytest.mark.parametrize("policy", ["dally", "manual:machine_s=600:rack_s=1200", OWN])
def test_a_simulation_leaves_a_log_that_replays(policy, tmp_path) -> None:
    path = simulate(tmp_path / "run", "--policy", policy, "--quota", "nobody=8", "--failures", "2")
    result, log = replay_file(path)
    assert result.difference is None
    assert result.entries > 120
    assert log.header.kind == "jobs"
    assert log.header.setting["policy"] == policy
    assert simulate(
        tmp_path / "again", "--policy", policy, "--quota", "nobody=8", "--failures", "2"
    ).read_bytes() == (path.read_bytes())


def test_one_decision_changed_by_hand_is_found(tmp_path) -> None:
    path = simulate(tmp_path)
    lines = gzip.decompress(path.read_bytes()).splitlines()
    number = next(i for i, line in enumerate(lines) if b"StartJob" in line and i > 50)
    entry = json.loads(lines[number])
    start = next(command for command in entry[3] if command["type"] == "StartJob")
    start["placement"][0][0] = "r7m7"
    lines[number] = json.dumps(entry).encode()
    changed = tmp_path / "events-changed.jsonl"
    changed.write_bytes(b"\n".join(lines) + b"\n")
    difference = replay_file(changed)[0].difference
    assert difference is not None
    assert (difference.number, difference.machine) == (number, "jobs")
    assert difference.logged != difference.replayed


def test_a_header_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(DataError, match="not that of a job run"):
        machines_of({"engine": "abacus"})
    with pytest.raises(DataError, match="has one machine, 'jobs'"):
        machines_of(msgspec.to_builtins(setting("fifo")))("gateway")


def test_a_live_run_replays_across_fresh_starts(tmp_path) -> None:
    """The policy keeps what it learned when its scheduler starts afresh, live and in the replay alike."""
    known = setting("dally", engine="slurm", quotas={"x": 4})
    live = LiveScheduler(known)
    some = SMALL.machines[:2]
    events = [
        (0.0, Rebuilt(machines=SMALL.machines, reason="the controller starts")),
        *[(1.0 + i, JobSubmitted(job=job(str(i), 4))) for i in range(6)],
        (10.0, JobSubmitted(job=job("greedy", 6, tenant="x"))),
        (500.0, JobFinished(job_id="0")),
        (600.0, Rebuilt(machines=some, reason="machines came, went or changed hands")),
        (600.0, JobFoundRunning(job=job("1", 4), placement=((some[0].name, 4),), since_s=2.0)),
        (600.0, JobSubmitted(job=job("4", 4))),
        (601.0, JobSubmitted(job=job("wide", 16))),
        (900.0, JobFinished(job_id="1")),
    ]
    entries = [(now_s, event, live.handle(event, now_s=now_s)) for now_s, event in events]
    with LogWriter(tmp_path / EVENTS, known.header()) as writer:
        pass_on(entries, writer)
    assert replay_file(tmp_path / EVENTS)[0].difference is None
    asked = {event.job.id: commands for _, event, commands in entries if isinstance(event, JobSubmitted)}
    assert [type(command) for command in asked["greedy"]] == [RefuseJob]
    assert "quota of 4" in asked["greedy"][0].reason
    assert "cluster 'grid' has 8" in asked["wide"][0].reason
    assert isinstance(asked["4"][0], StartJob)


def test_a_live_log_that_does_not_begin_with_the_machines_is_refused(tmp_path) -> None:
    known = setting("fifo", engine="slurm")
    with LogWriter(tmp_path / EVENTS, known.header()) as writer:
        writer.observe(0.0, "jobs", JobFinished(job_id="1"), [])
    with pytest.raises(DataError, match="begins with Rebuilt"):
        replay_file(tmp_path / EVENTS)


def test_a_policy_forgets_its_jobs_when_its_scheduler_starts_afresh() -> None:
    live = LiveScheduler(setting("dally", engine="slurm"))
    for now_s in (0.0, 100.0):
        live.handle(Rebuilt(machines=SMALL.machines, reason=""), now_s=now_s)
        for i in range(5):
            live.handle(JobSubmitted(job=job(str(i), 4)), now_s=now_s)
        assert live.current is not None
        assert live.current.policy._waiting_gpus == 4
