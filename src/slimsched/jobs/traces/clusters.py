"""Clusters read from files: a table of machines and racks, or Slurm's own configuration."""

import csv
import io
import re
from collections.abc import Iterator
from itertools import product
from math import prod
from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import (
    ConfigError,
    Count,
    DataError,
    Name,
    UnknownNameError,
    convert,
    parse_toml,
    read_packed_text,
    read_section,
)
from slimsched.jobs.domain import MOST_MACHINES, Machine, Topology, gpu_count

# -- Slurm's lists of machines: `n[1-4,07],gpu-a`, with leading zeros and several brackets in a name.

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")


def host_names(text: str) -> tuple[str, ...]:
    """Return the machines that a list names, in its order."""
    names: list[str] = []
    for entry in _ENTRY.findall(text):
        pieces = [
            tuple(_numbers(inner, text)) if inner else (plain,) for inner, plain in _PIECE.findall(entry)
        ]
        if prod(map(len, pieces)) + len(names) > MOST_MACHINES:
            raise DataError(f"'{text[:60]}' names more than {MOST_MACHINES:,} machines; give fewer")
        names += ["".join(parts) for parts in product(*pieces)]
    return tuple(names)


def _numbers(inner: str, text: str) -> Iterator[str]:
    """Yield the numbers of `1-4,07` with their leading zeros."""
    for part in inner.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()) or int(last) - int(first) >= MOST_MACHINES:
            raise DataError(f"'{text[:60]}' is no list of machines; write it as n[1-4,7]")
        yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


# -- A cluster as Slurm's own files describe it: machines from slurm.conf, racks from topology.conf.

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


# -- Cluster files: which machines stand in which racks.
#
# TOML: `racks`, `machines_per_rack`, `gpus_per_machine`, or a list of `[[machine]]` with name, rack, gpus.
# CSV: columns machine, rack, gpus; or Alibaba Lingjun's ip, DSW, PSW, ASW (the access switch is the rack).

LINGJUN_GPUS = 8


def read_cluster(path: Path) -> Topology:
    """Read a cluster from TOML or CSV, plain or gzipped."""
    if not path.is_file():
        raise ConfigError(f"no cluster file at {path}; give a TOML or CSV file, see configs/clusters")
    text = read_packed_text(path)
    name = path.name.split(".")[0]
    if ".toml" in path.suffixes:
        return _from_toml(text, path, name)
    return Topology(_from_csv(text, path), name=name)


class _GridFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster of equal racks."""

    racks: Count
    machines_per_rack: Count
    gpus_per_machine: Count
    name: Name = "cluster"


class _MachineFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster machine by machine."""

    machine: tuple[Machine, ...]
    name: Name = "cluster"


def _from_toml(text: str, path: Path, name: str) -> Topology:
    raw = {"name": name, **parse_toml(text, path.name)}
    if "machine" in raw:
        listed = read_section(raw, _MachineFile, path.name)
        return Topology(listed.machine, name=listed.name)
    return Topology.grid(**msgspec.structs.asdict(read_section(raw, _GridFile, path.name)))


def _from_csv(text: str, path: Path) -> list[Machine]:
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    machines = []
    try:
        for number, row in enumerate(rows):
            if {"ip", "ASW"} <= columns:
                machines.append(Machine(name=f"host{number}", rack=row["ASW"], gpus=LINGJUN_GPUS))
            else:
                known = {"name": row["machine"], "rack": row["rack"], "gpus": int(row["gpus"])}
                machines.append(convert(known, Machine, f"{path.name}, machine {number}"))
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ConfigError(
            f"{path.name}: column {error} is missing or wrong; give machine,rack,gpus or ip,DSW,PSW,ASW"
        ) from None
    return machines
