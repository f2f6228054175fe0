"""A throw-away Slurm on this machine: real daemons, fake GPUs, racks as switches.

Everything lives in one folder, runs as whoever starts it, listens on loopback only and is gone after
`stop`. GPUs are device files that no driver stands behind: Slurm counts and hands them out as usual.

    python tests/throw_away_slurm.py up [--folder DIR] [--racks 2] [--machines 4] [--gpus 8]
    python tests/throw_away_slurm.py down [--folder DIR]

`scripts/local-slurm` calls these. `up` prints the line that points SLURM_CONF at it.
"""

import argparse
import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from slimsched.jobs.slurm.wire import SlurmClient, SlurmError, Status

_MARK = "SLIM_THROW_AWAY_SLURM"

_SLURM_CONF = """\
ClusterName=slim{port}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/{scheduler}
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
TopologyPlugin=topology/tree
GresTypes=gpu
MinJobAge=86400
ReturnToService=2
KillWait={kill_wait_s}
NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs=64 \
RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class ThrowAwaySlurm:
    """Racks of machines with fake GPUs; `start`, use `conf`, `stop`.

    It remembers jobs that ended for a day. `scheduler` is Slurm's own, for jobs that are not held for ours.
    """

    def __init__(
        self,
        folder: Path,
        *,
        racks: int = 2,
        machines_per_rack: int = 4,
        gpus_per_machine: int = 8,
        kill_wait_s: int = 2,
        scheduler: Literal["builtin", "backfill"] = "builtin",
    ) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.topology = folder / "topology.conf"
        self.client = SlurmClient(conf=self.conf)
        self._racks = racks
        self._machines_per_rack = machines_per_rack
        self._gpus = gpus_per_machine
        self._kill_wait_s = kill_wait_s
        self._scheduler = scheduler
        self._environment = dict(os.environ) | {
            "SLURM_CONF": str(self.conf),
            "PATH": _path(),
            _MARK: str(folder),
        }

    @property
    def machines(self) -> list[str]:
        """The machines' names, in order."""
        return [f"n{i + 1}" for i in range(self._racks * self._machines_per_rack)]

    def start(self) -> None:
        """Start munged, slurmctld and one slurmd per machine, and wait until a first job has run."""
        _require_daemons()
        if self.conf.exists():
            raise SlurmError(
                f"a Slurm lives in {self.folder} already; stop it with 'scripts/local-slurm down' first"
            )
        if len(str(self.folder)) > 80:
            raise SlurmError(f"the folder {self.folder} is too long a path for a socket; take a shorter one")
        self.check_owner()
        self._write_files()
        try:
            self._call("munged", *self._munge_options())
            self.start_controller()
            for machine in self.machines:
                self._call("slurmd", "-N", machine, "-f", str(self.conf))
            wait_until(self._all_idle, "every machine of the throw-away Slurm is idle", timeout_s=30)
            self._run_first_job()
        except BaseException:
            self.stop()
            raise

    def check_owner(self) -> None:
        """Refuse a folder that somebody else has put in its place; make it if there is none."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        status = self.folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise SlurmError(f"{self.folder} is not a folder of this user; name another one")

    def start_controller(self) -> None:
        """Start slurmctld, which takes up the state it left behind, if any."""
        self._call("slurmctld", "-f", str(self.conf))

    def stop(self) -> None:
        """End every process of this cluster, jobs included, and remove its folder."""
        with contextlib.suppress(SlurmError):
            self._signal(signal.SIGTERM)
            wait_until(lambda: not self.processes(), "the daemons are gone", timeout_s=3)
        with contextlib.suppress(SlurmError):
            wait_until(lambda: not self._signal(signal.SIGKILL), "all is gone", timeout_s=10)
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[int]:
        """The daemons and what they start, which carry our mark, and the jobs of this cluster."""
        mark = f"{_MARK}={self.folder}\0".encode()
        conf = f"SLURM_CONF={self.conf}\0".encode()
        ours: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    environment = (entry / "environ").read_bytes()
                    is_job = conf in environment and b"SLURM_JOB_ID=" in environment
                    if (mark in environment or is_job) and _alive(int(entry.name)):
                        ours.append(int(entry.name))
        return ours

    def _signal(self, number: signal.Signals) -> list[int]:
        processes = self.processes()
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return processes

    def _call(self, *command: str) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SlurmError(f"{command[0]} failed: {' '.join(done.stderr.split())}")

    def _run_first_job(self) -> None:
        """Run an empty job: a fresh slurmctld starts nothing in its first seconds."""
        self._call("sbatch", "--output=/dev/null", "--chdir=/", "--job-name=first", "--wrap=true")
        wait_until(
            lambda: all(j.status is Status.GONE for j in self.client.jobs()), "a job ran", timeout_s=30
        )

    def _all_idle(self) -> bool:
        with contextlib.suppress(SlurmError):
            nodes = self.client.nodes()
            return len(nodes) == len(self.machines) and all(node.usable for node in nodes)
        return False

    def _munge_options(self) -> list[str]:
        files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid"}
        files |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        # --force: the folder may be ours alone, for nobody else need reach this Slurm
        return ["--force", *(f"--{option}={self.folder / file}" for option, file in files.items())]

    def _write_files(self) -> None:
        for folder in ("state", "spool", "gpus"):
            (self.folder / folder).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for i in range(self._gpus):
            _fake_gpu(self.folder / "gpus" / f"gpu{i}")
        count = len(self.machines)
        port = _free_ports(count + 1)
        nodes = f"n[1-{count}]"
        (self.folder / "gres.conf").write_text(
            f"AutoDetect=off\nNodeName={nodes} Name=gpu File={self.folder}/gpus/gpu[0-{self._gpus - 1}]\n"
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.topology.write_text("".join(self._switches()))
        self.conf.write_text(
            _SLURM_CONF.format(
                folder=self.folder,
                user=_user(),
                port=port,
                first_port=port + 1,
                last_port=port + count,
                nodes=nodes,
                gpus=self._gpus,
                kill_wait_s=self._kill_wait_s,
                scheduler=self._scheduler,
            )
        )

    def _switches(self) -> Iterator[str]:
        for rack in range(self._racks):
            first = rack * self._machines_per_rack + 1
            yield f"SwitchName=rack{rack + 1} Nodes=n[{first}-{first + self._machines_per_rack - 1}]\n"
        if self._racks > 1:
            yield f"SwitchName=core Switches=rack[1-{self._racks}]\n"


def missing_daemons() -> list[str]:
    """What a throw-away Slurm needs and this machine lacks."""
    return [
        name
        for name in ("munged", "slurmctld", "slurmd", "squeue")
        if shutil.which(name, path=_path()) is None
    ]


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float, step_s: float = 0.1) -> None:
    """Look again and again until a condition of the outside world holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise SlurmError(f"waited {timeout_s:g} s in vain until {what}")
        time.sleep(step_s)


def _require_daemons() -> None:
    missing = missing_daemons()
    if missing:
        raise SlurmError(
            f"{', '.join(missing)} not installed; on Debian: apt install slurmctld slurmd slurm-client munge"
        )


def _path() -> str:
    """Where to look for programs; daemons often lie where users do not look."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def _fake_gpu(path: Path) -> None:
    """A device file that behaves as /dev/null; a plain file where we may not make devices."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()


def _free_ports(count: int) -> int:
    """The first of `count` consecutive loopback ports nobody listens on."""
    for first in random.sample(range(20000, 30000, count), 50):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise SlurmError(f"no {count} consecutive free ports between 20000 and 30000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has reaped yet does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(words: list[str] | None = None) -> int:
    """Start or stop a throw-away Slurm; an error is one line."""
    parser = argparse.ArgumentParser(prog="throw_away_slurm.py", description=(__doc__ or "").splitlines()[0])
    shared = argparse.ArgumentParser(add_help=False)
    own = Path(tempfile.gettempdir()) / f"slim-slurm-{os.getuid()}"
    shared.add_argument("--folder", type=Path, default=own, help="where the Slurm lives")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", parents=[shared], help="start it")
    for name, default in (("racks", 2), ("machines", 4), ("gpus", 8)):
        up.add_argument(f"--{name}", type=int, default=default)
    commands.add_parser("down", parents=[shared], help="stop it, its jobs included")
    given = parser.parse_args(words)
    folder: Path = given.folder.absolute()
    try:
        if given.command == "up":
            _up(folder, given.racks, given.machines, given.gpus)
        elif (folder / "slurm.conf").exists():
            cluster = ThrowAwaySlurm(folder)
            cluster.check_owner()
            cluster.stop()
        else:
            raise SlurmError(f"no throw-away Slurm lives in {folder}; name its folder with --folder")
    except SlurmError as error:
        print(f"throw_away_slurm.py: {error}", file=sys.stderr)
        return 2
    return 0


def _up(folder: Path, racks: int, machines: int, gpus: int) -> None:
    slurm = ThrowAwaySlurm(folder, racks=racks, machines_per_rack=machines, gpus_per_machine=gpus)
    slurm.start()
    print(
        f"Slurm with {racks} racks × {machines} machines × {gpus} fake GPUs runs in {folder}; "
        "stop it with 'scripts/local-slurm down'",
        file=sys.stderr,
    )
    print(f"export SLURM_CONF={slurm.conf}")


if __name__ == "__main__":
    sys.exit(main())
