"""Cluster files: which machines stand in which racks.

TOML: `racks`, `machines_per_rack`, `gpus_per_machine`, or a list of `[[machine]]` with name, rack, gpus.
CSV: columns machine, rack, gpus; or Alibaba Lingjun's ip, DSW, PSW, ASW (the access switch is the rack).
"""

import csv
import io
from pathlib import Path

from msgspec import Struct

from slimsched.jobs.domain.topology import Machine, Topology
from slimsched.kernel.errors import ConfigError
from slimsched.kernel.packed_text import read_packed_text
from slimsched.kernel.quantity import Count, Name
from slimsched.kernel.section import convert, parse_toml, read_section

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
    grid = read_section(raw, _GridFile, path.name)
    return Topology.grid(
        racks=grid.racks,
        machines_per_rack=grid.machines_per_rack,
        gpus_per_machine=grid.gpus_per_machine,
        name=grid.name,
    )


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
