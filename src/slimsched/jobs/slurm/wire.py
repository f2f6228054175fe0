"""Talking to Slurm through its own commands: requests, answers as JSON, and notes kept in its jobs."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from slimsched.core.config import Finite, Seconds, SlimError
from slimsched.jobs.domain import Placement, gpu_count, gpus_in
from slimsched.jobs.scheduler.gpus import pinned_share
from slimsched.jobs.traces.clusters import host_names

# -- Reading Slurm's `--json` answers, which change shape with Slurm's version.
#
# 22.05 writes plain numbers and one word for a state; 23.02 and newer write
# {"set": true, "infinite": false, "number": 7} and lists of words. Only the first shape is tried out
# against a running Slurm here; the second follows Slurm's published data parsers.

Reply = dict[str, Any]

_UNLIMITED = 0xFFFFFFFE  # Slurm's NO_VAL and INFINITE are the two largest 32-bit numbers


def number(value: Any) -> float | None:
    """A number in either shape, or None when it is absent, unset or unlimited."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None or value == "" or float(value) >= _UNLIMITED:
        return None
    return float(value)


def words(value: Any) -> frozenset[str]:
    """State or flags as upper-case words, from one word or a list of them."""
    if isinstance(value, str):
        value = [value]
    return frozenset(str(word).upper() for word in value or ())


# -- A job as Slurm describes it.


class Status(Enum):
    """What a job is doing, as far as scheduling is concerned."""

    HELD = "held"
    QUEUED = "queued"  # released: Slurm will start it as soon as it can
    RUNNING = "running"
    ENDING = "ending"  # it has stopped, but its GPUs are not free yet
    GONE = "gone"


class SlurmJob(Struct, frozen=True, kw_only=True):
    """One job; times are Unix seconds, None where Slurm has none to give."""

    id: str
    status: Status
    state: str  # Slurm's own words, such as COMPLETING+RUNNING
    gpus: int  # that it asks for in all
    per_task: bool = False  # it asked for GPUs by the task, which ties them to its tasks
    compound: bool = False  # part of a job array or of a heterogeneous job
    partition: str = ""
    user: str = ""
    name: str = ""
    comment: str = ""  # holds the user's request
    admin_comment: str = ""  # holds the controller's memory
    submit_s: float = 0.0  # moves with every requeue
    eligible_s: float | None = None  # from when on it may start
    start_s: float | None = None
    end_s: float | None = None
    limit_s: float | None = None  # its time limit in seconds
    restarts: int = 0  # how often it was requeued
    requeue: bool = True  # whether it may be
    nodes: str = ""  # where it runs, as a host list
    shares: tuple[int, ...] = ()  # its GPUs on each of these
    reason: str = ""  # why Slurm says that it waits

    @classmethod
    def from_reply(cls, reply: Reply) -> "SlurmJob":
        """One entry of `squeue --json`."""
        state = words(reply.get("job_state"))
        minutes = number(reply.get("time_limit"))
        return cls(
            id=str(reply["job_id"]),
            status=_status(state, held=number(reply.get("priority")) == 0),
            state="+".join(sorted(state)),
            gpus=_gpus(reply),
            per_task=gpu_count(reply.get("tres_per_task")) > 0,
            compound=bool(number(reply.get("array_job_id")) or number(reply.get("het_job_id"))),
            partition=reply.get("partition") or "",
            user=reply.get("user_name") or "",
            name=reply.get("name") or "",
            comment=reply.get("comment") or "",
            admin_comment=reply.get("admin_comment") or "",
            submit_s=number(reply.get("submit_time")) or 0.0,
            eligible_s=number(reply.get("eligible_time")) or None,
            start_s=number(reply.get("start_time")) or None,
            end_s=number(reply.get("end_time")) or None,
            limit_s=None if minutes is None else 60.0 * minutes,
            restarts=int(number(reply.get("restart_cnt")) or 0),
            requeue=bool(reply.get("requeue")),
            nodes=reply.get("nodes") or "",
            shares=tuple(gpu_count(detail) for detail in reply.get("gres_detail") or ()),
            reason=reply.get("state_reason") or "",
        )


def _status(state: frozenset[str], *, held: bool) -> Status:
    if "COMPLETING" in state:
        return Status.ENDING
    if state & {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING"}:
        return Status.RUNNING
    if state & {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
        return Status.HELD if held else Status.QUEUED
    return Status.GONE


def _gpus(reply: Reply) -> int:
    """GPUs the job asks for in all, however it asked."""
    in_all = gpu_count(reply.get("tres_per_job"))
    if in_all:
        return in_all
    per_node = gpu_count(reply.get("tres_per_node"))
    if per_node:
        return per_node * int(number(reply.get("node_count")) or 1)
    return gpu_count(reply.get("tres_per_task")) * int(number(reply.get("tasks")) or 1)


# -- A machine as Slurm describes it.

_UNUSABLE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "MAINT",
     "NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWER_DOWN", "POWERING_DOWN", "INVAL", "INVALID_REG",
     "REBOOT", "REBOOT_REQUESTED", "PLANNED_DOWN"}
)  # fmt: skip


class SlurmNode(Struct, frozen=True, kw_only=True):
    """A machine, its GPUs, and whether Slurm may start jobs on it."""

    name: str
    gpus: int
    usable: bool
    partitions: tuple[str, ...] = ()

    @classmethod
    def from_reply(cls, reply: Reply) -> "SlurmNode":
        """One entry of `sinfo --json`."""
        state = words(reply.get("state")) | words(reply.get("state_flags"))
        return cls(
            name=reply["name"],
            gpus=gpu_count(reply.get("gres")),
            usable=not state & _UNUSABLE,
            partitions=tuple(reply.get("partitions") or ()),
        )


# -- What can go wrong between us and Slurm.


class SlurmError(SlimError):
    """Slurm is missing, refuses a request, or cannot do what is asked of it."""


class SlurmUnreachableError(SlurmError):
    """Slurm's controller does not answer; what it was asked may or may not have happened."""


class SlurmDeniedError(SlurmError):
    """Slurm does not let us do this; we must be an operator or Slurm's own user."""


class SlurmGoneError(SlurmError):
    """The job has ended before Slurm could do what was asked; the next look will show that."""


# -- What a job carries with it inside Slurm, so that we need no memory of our own.
#
# The *request* stands in the job's comment, written once by whoever submits it, and makes the job ours.
# The *memory* stands in its admin comment, written by the controller whenever it acts; a controller that
# starts afresh reads it back.

_MARK = "slim"

Note = TypeVar("Note")


class JobRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the user tells the scheduler beyond the number of GPUs."""

    model: str = ""  # what it trains
    tenant: str = ""  # whose quota it counts against; else its user's
    service_s: Seconds = 0.0  # its ideal time, where somebody knows it


class Memory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the controller must not forget about a job."""

    arrival_s: Finite | None = None  # Slurm's own submit time moves with every requeue
    served_s: Seconds = 0.0  # ideal service that it has had
    declined_since_s: Finite | None = None  # when it first declined an offer
    placement: Placement = ()  # where the job was last told to run


def written(note: JobRequest | Memory) -> str:
    """The note as it stands in a comment."""
    return f"{_MARK} {msgspec.json.encode(note).decode()}"


def request_in(comment: str) -> JobRequest | None:
    """The request in a comment (the bare word `slim` is one, with nothing to add); None: not our job."""
    mark, _, text = comment.partition(" ")
    return (_read(text, JobRequest) or JobRequest()) if mark == _MARK else None


def memory_in(admin_comment: str) -> Memory:
    """The memory in an admin comment; a fresh one where there is none."""
    mark, _, text = admin_comment.partition(" ")
    return (_read(text, Memory) or Memory()) if mark == _MARK else Memory()


def _read(text: str, kind: type[Note]) -> Note | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


# -- Talking to Slurm through its own commands: squeue, sinfo, scontrol, sbatch.

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

    # observing

    def version(self) -> tuple[int, int]:
        """Year and month of Slurm's release."""
        if self._version is None:
            text = self._run("squeue", "--version")
            match = re.search(r"(\d+)\.(\d+)", text)
            if match is None:
                raise SlurmError(f"squeue --version says '{text.strip()}'; expected one such as 22.05.8")
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
            racks |= dict.fromkeys(host_names(nodes), switch)
        return racks

    def placement(self, job: SlurmJob) -> Placement:
        """Where a running job's GPUs are; of one that is ending, Slurm may name only some."""
        return tuple(zip(host_names(job.nodes), job.shares, strict=False)) if job.nodes else ()

    # acting

    def submit(
        self,
        script: Sequence[str],
        *,
        gpus: int,
        request: JobRequest,
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
        self._tell(*place_arguments(job_id, placement), memory=memory)

    def remember(self, job_id: str, memory: Memory) -> None:
        """Write the controller's memory into the job."""
        self._tell("update", f"JobId={job_id}", memory=memory)

    def release(self, job_id: str) -> None:
        """Let Slurm start a held job."""
        self._tell("release", job_id)

    def hold(self, job_id: str) -> None:
        """Keep Slurm from starting a waiting job."""
        self._tell("hold", job_id)

    def requeue_held(self, job_id: str) -> None:
        """Stop a running job (SIGTERM, then SIGKILL after KillWait) and put it back, held.

        `Incomplete`: else Slurm would make a job run again that has ended since we looked.
        """
        self._tell("requeuehold", "Incomplete", job_id)

    # the wire

    def _tell(self, *arguments: str, memory: Memory | None = None) -> None:
        """Have scontrol do something, and write down a memory with it."""
        note = [f"AdminComment={written(memory)}"] if memory else []
        self._run("scontrol", *arguments, *note)

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
    where_to = [f"NumNodes={machines}-{machines}", f"ReqNodeList={nodes}"]
    return ["update", f"JobId={job_id}", *where_to, f"TresPerNode={per_node}", f"TresPerJob={per_job}"]
