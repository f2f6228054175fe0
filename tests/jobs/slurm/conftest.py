"""A throw-away Slurm for the tests, and the controller as a process that can be killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.workloads import decode_entries
from slimsched.core.log import EVENTS, Log, find_logs
from slimsched.jobs.slurm.wire import JobRequest, Memory, SlurmJob, Status, memory_in
from slimsched.jobs.telemetry import JobEntry
from throw_away_slurm import ThrowAwaySlurm, missing_daemons, wait_until

GANG = Path(__file__).parents[3] / "examples" / "slurm_checkpointing_gang.py"
SLIM = str(Path(sys.executable).parent / "slim")
CHECKED_SLIM = (sys.executable, str(Path(__file__).with_name("checked_slim.py")))


@pytest.fixture(scope="session")
def cluster() -> Iterator[ThrowAwaySlurm]:
    missing = missing_daemons()
    if missing:
        reason = f"{', '.join(missing)} not installed: apt install slurmctld slurmd slurm-client munge"
        if os.environ.get("SLIM_REQUIRE_SLURM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    cluster = ThrowAwaySlurm(Path(tempfile.mkdtemp(prefix="slim-slurm-")))
    cluster.start()
    yield cluster
    cluster.stop()


class Site:
    """The throw-away Slurm as one test sees it: its own jobs, its own journal, its own controllers."""

    def __init__(self, cluster: ThrowAwaySlurm, folder: Path) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.folder = folder
        self.run = folder / "run"
        self.gangs: list[str] = []
        self._controllers: list[subprocess.Popen[bytes]] = []

    def submit(self, *, gpus: int, steps: int, step_s: float = 1.0, model: str = "") -> str:
        """Submit a checkpointing gang."""
        script = [str(GANG), str(self.folder), f"--steps={steps}", f"--step-s={step_s}"]
        options = [f"--output={self.folder}/%j.out"]
        gang = self.client.submit(script, gpus=gpus, request=JobRequest(model=model), options=options)
        self.gangs.append(gang)
        return gang

    def control(self, *, speed: float) -> subprocess.Popen[bytes]:
        """Start a controller that stops when no job is left."""
        command = [*CHECKED_SLIM, "jobs", "run", "--engine=slurm", "--policy=dally", "--network=congested"]
        command += [f"--conf={self.cluster.conf}", f"--speed={speed}", "--poll-s=0.25", "--until-idle"]
        with (self.folder / "controller.out").open("ab") as out:
            controller = subprocess.Popen([*command, f"--out={self.run}"], stdout=out, stderr=out)
        self._controllers.append(controller)
        return controller

    def slurm(self, *command: str) -> str:
        """Run one of Slurm's own commands, as a user or an operator would."""
        environment = dict(os.environ) | {"SLURM_CONF": str(self.cluster.conf)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    def resume(self, machine: str) -> None:
        """Put a machine back to work, unless it has come back by itself."""
        if not all(node.usable for node in self.client.nodes() if node.name == machine):
            self.slurm("scontrol", "update", f"NodeName={machine}", "State=RESUME")

    def slim(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a `slim jobs` command against this Slurm."""
        conf = f"--conf={self.cluster.conf}"
        return subprocess.run([SLIM, "jobs", command[0], conf, *command[1:]], capture_output=True, text=True)

    def stop_slurmctld(self) -> None:
        """End slurmctld as an operator would: it saves its state."""
        pid = int((self.cluster.folder / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: pid not in self.cluster.processes(), "slurmctld is gone", timeout_s=10)

    def jobs(self) -> dict[str, SlurmJob]:
        """Our gangs as Slurm has them."""
        return {job.id: job for job in self.client.jobs() if job.id in self.gangs}

    def memory(self, gang: str) -> Memory:
        """What the controller wrote into a gang."""
        return memory_in(self.jobs()[gang].admin_comment)

    def count(self, status: Status) -> int:
        return sum(job.status is status for job in self.jobs().values())

    def wait(self, condition: Callable[[], bool], what: str, *, timeout_s: float = 60.0) -> None:
        """Wait for Slurm; a controller that ends early is an error."""

        def holds() -> bool:
            crashed = [c.returncode for c in self._controllers if c.poll() not in (None, 0, -signal.SIGKILL)]
            assert not crashed, self.output()
            return condition()

        wait_until(holds, what, timeout_s=timeout_s)

    def output(self) -> str:
        """What the controllers said."""
        return (self.folder / "controller.out").read_text()

    def journal(self) -> list[str]:
        """What the gangs wrote: `JOB started|stopped|finished at step N on NODES`."""
        journal = self.folder / "journal"
        return journal.read_text().splitlines() if journal.exists() else []

    def finished(self) -> list[str]:
        """The gangs that reached their last step, once for each time they did."""
        return [line.split()[0] for line in self.journal() if " finished " in line]

    def ran_for_s(self, gang: str) -> float:
        """How long a gang has been running by now."""
        return time.time() - (self.jobs()[gang].start_s or time.time())

    def logs(self) -> list[Path]:
        """The logs of the controllers, one each, in order."""
        return sorted(find_logs(self.run), key=lambda path: (path.name != EVENTS, path.name))

    def entries(self) -> list[JobEntry]:
        """What the controllers' schedulers were told and what they asked for."""
        return [entry for path in self.logs() for entry in decode_entries(Log(path).entries())]

    def clear(self) -> None:
        for controller in self._controllers:
            controller.kill()
            controller.wait()
        self.slurm("scancel", "--full", "--partition=main")
        wait_until(
            lambda: all(job.status is Status.GONE for job in self.client.jobs()), "jobs end", timeout_s=30
        )


@pytest.fixture
def site(cluster: ThrowAwaySlurm, tmp_path: Path) -> Iterator[Site]:
    site = Site(cluster, tmp_path)
    yield site
    site.clear()
