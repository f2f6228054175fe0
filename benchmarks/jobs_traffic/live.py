"""The gangs on a real Slurm, scheduled by Slurm itself or by one of our policies."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from racks import MACHINES_PER_RACK, Racks
from workload import COMPUTE_S, GRADIENT_BYTES, LIMIT_S, Gang, model_file

from slimsched.jobs.slurm.wire import JobRequest, Status

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from throw_away_slurm import ThrowAwaySlurm, wait_until

HERE = Path(__file__).parent
SLIM = [sys.executable, "-c", "from slimsched.cli.app import main; main()"]
SPEED = 30.0
"""Seconds of the policy in a second: its timers are made for jobs of hours, these last seconds."""
SLURM = "slurm"
"""In place of a policy: Slurm's own backfill and topology plugin."""


class Course(NamedTuple):
    """When a gang was submitted, when its processes ran in all, and where it ran in the end."""

    submitted_s: float
    started_s: float
    ended_s: float
    racks: int
    machines: tuple[str, ...] = ()
    stops: int = 0


@contextlib.contextmanager
def gang_server(folder: Path) -> Iterator[None]:
    """A server of gangs for as long as the block runs."""
    with (folder / "server.out").open("ab") as out:
        server = subprocess.Popen([sys.executable, HERE / "gang_server.py", folder], stdout=out, stderr=out)
    try:
        wait_until((folder / "gangs").exists, "the gang server is ready", timeout_s=60)
        yield
    finally:
        server.kill()
        server.wait()


class Site:
    """A throw-away Slurm whose machines are the namespaces."""

    def __init__(self, racks: Racks, folder: Path, *, scheduler: str) -> None:
        self._racks = racks
        self._folder = folder
        self._gpus = racks.topology.machines[0].gpus
        self._own = scheduler == SLURM
        self._policy = scheduler
        self.slurm = ThrowAwaySlurm(
            Path(tempfile.mkdtemp(prefix="slim-slurm-")),
            racks=len(racks.topology.racks),
            machines_per_rack=MACHINES_PER_RACK,
            gpus_per_machine=self._gpus,
            scheduler="backfill" if self._own else "builtin",
        )

    def submit(self, gang: Gang, *options: str) -> str:
        """Submit a gang as a user would: to Slurm with the machines it needs, or to the controller."""
        asked = [COMPUTE_S, GRADIENT_BYTES[gang.model], gang.steps]
        script = [str(HERE / "gang.py"), str(self._folder / "gangs"), *map(str, asked)]
        limit = str(round(LIMIT_S / 60))
        common = ["--output=/dev/null", "--chdir=/", *options]
        if not self._own:
            request = JobRequest(model=gang.model)
            return self.slurm.client.submit(
                script, gpus=gang.gpus, request=request, limit=limit, options=common
            )
        machines = gang.machines(self._gpus)
        shape = [f"--nodes={machines}", f"--gpus-per-node={gang.gpus // machines}", f"--time={limit}"]
        command = ["sbatch", "--parsable", *shape, *common, *script]
        environment = dict(os.environ) | {"SLURM_CONF": str(self.slurm.conf)}
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout.strip()

    def idle(self) -> bool:
        """Whether no job is left."""
        return all(job.status is Status.GONE for job in self.slurm.client.jobs())

    @contextlib.contextmanager
    def controlled(self) -> Iterator[None]:
        """Let our controller run meanwhile, unless Slurm schedules by itself."""
        if self._own:
            yield
            return
        models = self._folder / "models.toml"
        models.write_text(model_file())
        options = [f"--conf={self.slurm.conf}", f"--policy={self._policy}", "--network=congested"]
        options += [f"--model-file={models}", f"--speed={SPEED}", "--poll-s=0.25"]
        with (self._folder / "controller.out").open("ab") as out:
            command = [*SLIM, "jobs", "run", "--engine=slurm", *options, f"--out={self._folder / 'run'}"]
            controller = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_until(
                lambda: bool(list(self._folder.glob("run/events*"))), "the controller runs", timeout_s=60
            )
            yield
        finally:
            controller.terminate()
            controller.wait()

    def courses(self, submitted_s: dict[str, float]) -> list[Course]:
        """What became of the gangs, in order of submission."""
        rack_of = self._racks.topology.rack_of_name
        lines = [json.loads(line) for line in (self._folder / "journal").read_text().splitlines()]
        courses: dict[str, Course] = {}
        for line in lines:
            job = line["job"]
            if job not in submitted_s:
                continue
            before = courses.get(job)
            machines = tuple(line["machines"])
            racks = len({rack_of[name] for name in machines})
            first_s = before.started_s if before else line["started_s"]
            stops = before.stops + 1 if before else 0
            courses[job] = Course(submitted_s[job], first_s, line["ended_s"], racks, machines, stops)
        lost = [job for job in submitted_s if job not in courses]
        if lost:
            raise SystemExit(f"{len(lost)} gangs never ran, the first is job {lost[0]}; see {self._folder}")
        return [courses[job] for job in submitted_s]


def run(racks: Racks, gangs: Sequence[Gang], scheduler: str) -> list[Course]:
    """Run all gangs once."""
    with tempfile.TemporaryDirectory(prefix="slim-gangs-") as name:
        folder = Path(name)
        site = Site(racks, folder, scheduler=scheduler)
        site.slurm.start()
        try:
            with gang_server(folder), site.controlled():
                begun_s = time.time()
                submitted_s: dict[str, float] = {}
                for gang in gangs:
                    time.sleep(max(0.0, begun_s + gang.arrival_s - time.time()))
                    submitted_s[site.submit(gang)] = time.time()
                wait_until(site.idle, "all gangs are done", timeout_s=500, step_s=0.5)
            return site.courses(submitted_s)
        finally:
            site.slurm.stop()
