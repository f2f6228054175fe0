"""Talking to Slurm through its own commands: squeue, sinfo, scontrol, sbatch."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slimsched.jobs.domain import Placement, gpus_in
from slimsched.jobs.execution.slurm.error import (
    SlurmDeniedError,
    SlurmError,
    SlurmGoneError,
    SlurmUnreachableError,
)
from slimsched.jobs.execution.slurm.job import SlurmJob
from slimsched.jobs.execution.slurm.node import SlurmNode
from slimsched.jobs.execution.slurm.note import Memory, Request, written
from slimsched.jobs.execution.slurm.reply import Reply
from slimsched.jobs.scheduler.gpus import pinned_share

_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|connect failure|communication|timed out|"
    r"socket timed out|zero bytes were transmitted|no such file or directory.*munge|munge.*failed|"
    r"Failed while looking for|Unspecified error|unexpected message received",  # the last: it ended meanwhile
    re.IGNORECASE,
)
_GONE = re.compile(r"already (finished|completing)|invalid job id", re.IGNORECASE)
_NO_CONFIGURATION = re.compile(r"configuration source|slurm\.conf", re.IGNORECASE)


class SlurmClient:
    """One Slurm cluster; `conf` names its slurm.conf where SLURM_CONF or /etc/slurm does not."""

    def __init__(self, *, conf: Path | None = None, timeout_s: float = 30.0) -> None:
        self.conf = conf
        self.timeout_s = timeout_s
        self._environment = dict(os.environ) | ({"SLURM_CONF": str(conf)} if conf else {})
        self._version: tuple[int, int] | None = None
        self._hostnames: dict[str, tuple[str, ...]] = {}

    # observing

    def version(self) -> tuple[int, int]:
        """Year and month of Slurm's release."""
        if self._version is not None:
            return self._version
        text = self._run("squeue", "--version")
        match = re.search(r"(\d+)\.(\d+)", text)
        if match is None:
            raise SlurmError(f"squeue --version says '{text.strip()}'; expected a version such as 22.05.8")
        self._version = int(match[1]), int(match[2])
        return self._version

    def configuration(self) -> dict[str, str]:
        """Slurm's configuration as the controller sees it."""
        pairs = (line.partition("=") for line in self._run("scontrol", "show", "config").splitlines())
        return {key.strip(): value.strip() for key, equals, value in pairs if equals}

    def jobs(self) -> list[SlurmJob]:
        """Every job Slurm still knows, those that ended a short while ago included."""
        return [SlurmJob.from_reply(reply) for reply in self._ask("jobs", "squeue", "--json")]

    def nodes(self) -> list[SlurmNode]:
        """Every machine, in Slurm's own order (from 23.02 on, sinfo tells of groups of machines)."""
        grouped = self.version() >= (23, 2)
        command = ("scontrol", "show", "nodes", "--json") if grouped else ("sinfo", "--json")
        return [SlurmNode.from_reply(reply) for reply in self._ask("nodes", *command)]

    def racks(self) -> dict[str, str]:
        """The leaf switch each machine hangs on, by machine; empty without topology.conf."""
        try:
            text = self._run("scontrol", "show", "topology")
        except SlurmUnreachableError:
            raise
        except SlurmError:
            return {}
        racks: dict[str, str] = {}
        for switch, nodes in re.findall(r"SwitchName=(\S+) Level=0 .*?\bNodes=(\S+)", text):
            racks |= dict.fromkeys(self.hostnames(nodes), switch)
        return racks

    def hostnames(self, expression: str) -> tuple[str, ...]:
        """The machines in a host list such as n[1-4,7]."""
        if expression not in self._hostnames:
            names = self._run("scontrol", "show", "hostnames", expression).split()
            self._hostnames[expression] = tuple(names)
        return self._hostnames[expression]

    def placement(self, job: SlurmJob) -> Placement:
        """Where a running job's GPUs are; of one that is ending, Slurm may name only some."""
        return tuple(zip(self.hostnames(job.nodes), job.shares, strict=False)) if job.nodes else ()

    # acting

    def submit(
        self,
        script: Sequence[str],
        *,
        gpus: int,
        request: Request,
        name: str | None = None,
        partition: str | None = None,
        limit: str | None = None,
        options: Sequence[str] = (),
    ) -> str:
        """Submit a batch script and its arguments, held, for the controller to place; returns its id."""
        arguments = ["--parsable", "--hold", "--requeue", f"--gpus={gpus}", f"--comment={written(request)}"]
        arguments += [f"--job-name={name}"] if name else []
        arguments += [f"--partition={partition}"] if partition else []
        arguments += [f"--time={limit}"] if limit else []
        return self._run("sbatch", *arguments, *options, *script).strip().split(";")[0]

    def place(self, job_id: str, placement: Placement, memory: Memory) -> None:
        """Bind a held job to these machines and write down why it is there."""
        self._run("scontrol", *place_arguments(job_id, placement), f"AdminComment={written(memory)}")

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write the controller's memory into the job."""
        self._run("scontrol", "update", f"JobId={job_id}", f"AdminComment={written(memory)}")

    def release(self, job_id: str) -> None:
        """Let Slurm start a held job."""
        self._run("scontrol", "release", job_id)

    def hold(self, job_id: str) -> None:
        """Keep Slurm from starting a waiting job."""
        self._run("scontrol", "hold", job_id)

    def requeue_held(self, job_id: str) -> None:
        """Stop a running job (SIGTERM, then SIGKILL after KillWait) and put it back, held.

        `Incomplete`: else Slurm would make a job run again that has ended since we looked.
        """
        self._run("scontrol", "requeuehold", "Incomplete", job_id)

    # the wire

    def _ask(self, key: str, *command: str) -> list[Reply]:
        text = self._run(*command)
        try:
            reply = json.loads(text)
        except json.JSONDecodeError:
            raise SlurmError(
                f"'{' '.join(command)}' did not answer with JSON; use a Slurm of 22.05 or newer with JSON"
            ) from None
        if reply.get("errors"):  # Slurm 22.05 exits with 0 and an empty list when its controller is away
            said = "; ".join(f"{e.get('description', '')} {e.get('error', '')}" for e in reply["errors"])
            raise SlurmUnreachableError(f"Slurm's controller does not answer ({said}); is slurmctld running?")
        entries: list[Reply] = reply[key]
        return entries

    def _run(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                timeout=self.timeout_s,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            raise SlurmError(
                f"'{command[0]}' is not installed; install Slurm's client (Debian: apt install slurm-client)"
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmUnreachableError(
                f"'{command[0]}' gave no answer within {self.timeout_s:g} s; is slurmctld running?"
            ) from None
        if done.returncode == 0:
            return done.stdout
        said = " ".join((done.stderr or done.stdout).split())
        if _UNREACHABLE.search(said):
            raise SlurmUnreachableError(f"Slurm's controller does not answer ({said}); is slurmctld running?")
        if _NO_CONFIGURATION.search(said):
            raise SlurmError("no Slurm found: neither SLURM_CONF nor /etc/slurm/slurm.conf names a cluster")
        if "permission denied" in said.lower():
            raise SlurmDeniedError(
                f"Slurm refused '{' '.join(command[:3])}' ({said}); run as Slurm's user or as an operator"
            )
        if _GONE.search(said):
            raise SlurmGoneError(f"Slurm refused '{' '.join(command[:3])}': {said}")
        raise SlurmError(f"Slurm refused '{' '.join(command[:3])}': {said}")


def place_arguments(job_id: str, placement: Placement) -> list[str]:
    """The scontrol call that binds a held job to machines, and to its shares there if they are equal.

    Never both per node and per job: Slurm 22.05 then calls some jobs that fit impossible.
    """
    machines, share = len(placement), pinned_share(placement)
    nodes = ",".join(name for name, _ in placement)
    per_node, per_job = ("", f"gres:gpu:{gpus_in(placement)}") if not share else (f"gres:gpu:{share}", "")
    return [
        "update",
        f"JobId={job_id}",
        f"NumNodes={machines}-{machines}",
        f"ReqNodeList={nodes}",
        f"TresPerNode={per_node}",
        f"TresPerJob={per_job}",
    ]
