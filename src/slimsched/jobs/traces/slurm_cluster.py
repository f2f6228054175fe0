"""A cluster as Slurm's own files describe it: machines from slurm.conf, racks from topology.conf."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from slimsched.jobs.domain.gres import gpu_count
from slimsched.jobs.domain.topology import Machine, Topology
from slimsched.jobs.traces.hostlist import host_names
from slimsched.kernel.errors import ConfigError, UnknownNameError
from slimsched.kernel.packed_text import read_packed_text

Line = dict[str, str]


class SlurmFiles(Struct, frozen=True, kw_only=True):
    """What slurm.conf says: GPUs by machine, machines by partition, and how Slurm schedules."""

    gpus: dict[str, int]
    partitions: dict[str, tuple[str, ...]]
    scheduler: str = "sched/backfill"
    backfill_interval_s: float = 30.0
    backfill_resolution_s: float = 60.0

    @property
    def policy(self) -> str:
        """Return the policy of ours that schedules as this Slurm does."""
        if self.scheduler == "sched/builtin":
            return "fifo"
        times = f"interval_s={self.backfill_interval_s:g}:resolution_s={self.backfill_resolution_s:g}"
        return f"backfill:{times}"

    def machines_of(self, partition: str | None) -> dict[str, int]:
        """GPUs of each machine with GPUs, of one partition or of all."""
        if partition is None:
            return {name: gpus for name, gpus in self.gpus.items() if gpus}
        if partition not in self.partitions:
            raise UnknownNameError("partition", partition, tuple(self.partitions) or ("none",))
        names = self.partitions[partition]
        return {name: gpus for name, gpus in self.gpus.items() if gpus and ("ALL" in names or name in names)}


def read_slurm_conf(path: Path) -> SlurmFiles:
    """Read the NodeName, PartitionName and SchedulerType lines of a slurm.conf."""
    gpus: dict[str, int] = {}
    partitions: dict[str, tuple[str, ...]] = {}
    settings: Line = {}
    default: Line = {}
    for line in _lines(path):
        if line.get("nodename") == "DEFAULT":
            default |= line
        elif "nodename" in line:
            count = gpu_count((default | line).get("gres", ""))
            gpus |= dict.fromkeys(host_names(line["nodename"]), count)
        elif "partitionname" in line:
            partitions[line["partitionname"]] = host_names(line.get("nodes", ""))
        else:
            settings |= line
    if not any(gpus.values()):
        raise ConfigError(
            f"{path} names no machine with GPUs; give the slurm.conf with NodeName=… Gres=gpu:N lines"
        )
    parameters = settings.get("schedulerparameters", "")
    return SlurmFiles(
        gpus=gpus,
        partitions=partitions,
        scheduler=settings.get("schedulertype", "sched/backfill"),
        backfill_interval_s=_parameter(parameters, "bf_interval", 30.0),
        backfill_resolution_s=_parameter(parameters, "bf_resolution", 60.0),
    )


def _parameter(parameters: str, name: str, default: float) -> float:
    """Read a number out of SchedulerParameters."""
    value = re.search(rf"\b{name}=(\d+)", parameters)
    return float(value[1]) if value else default


def read_racks(path: Path) -> dict[str, str]:
    """Read the leaf switch of each machine from a topology.conf."""
    racks: dict[str, str] = {}
    for line in _lines(path):
        if "switchname" in line and "nodes" in line:
            racks |= dict.fromkeys(host_names(line["nodes"]), line["switchname"])
    if not racks:
        raise ConfigError(f"{path} names no switch with machines; give SwitchName=… Nodes=… lines")
    return racks


def slurm_topology(machines: dict[str, int], racks: dict[str, str], name: str) -> Topology:
    """Return the machines in their racks; one that no leaf switch names stands in a rack of its own."""
    return Topology(
        (Machine(name=one, rack=racks.get(one, one), gpus=gpus) for one, gpus in machines.items()), name=name
    )


def _lines(path: Path) -> Iterator[Line]:
    """Yield each line as its keys, in lower case, and values; comments go, continued lines are joined."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; name Slurm's own slurm.conf or topology.conf")
    for text in read_packed_text(path).replace("\\\n", " ").splitlines():
        words = [word.partition("=") for word in text.partition("#")[0].split()]
        line = {key.lower(): value.strip('"') for key, equals, value in words if equals}
        if line:
            yield line
