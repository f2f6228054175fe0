"""Cluster files: which machines stand in which racks.

TOML: `racks`, `machines_per_rack`, `gpus_per_machine`, or a list of `[[machine]]` with name, rack, gpus.
CSV: columns machine, rack, gpus; or Alibaba Lingjun's ip, DSW, PSW, ASW (the access switch is the rack).
"""

import csv
import gzip
import io
import tomllib
from pathlib import Path
from typing import Any

from slimsched.jobs.domain.topology import Machine, Topology
from slimsched.kernel.errors import ConfigError

LINGJUN_GPUS = 8
GRID = {"racks", "machines_per_rack", "gpus_per_machine"}


def read_cluster(path: Path) -> Topology:
    """Read a cluster from TOML or CSV, plain or gzipped."""
    if not path.is_file():
        raise ConfigError(f"no cluster file at {path}; give a TOML or CSV file, see configs/clusters")
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text or gzip: {error}") from None
    name = path.name.split(".")[0]
    if ".toml" in path.suffixes:
        return _from_toml(text, path, name)
    return Topology(_from_csv(text, path), name=name)


def _from_toml(text: str, path: Path, name: str) -> Topology:
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    unknown = set(raw) - GRID - {"name", "machine"}
    if unknown:
        known = ", ".join(sorted(GRID | {"name", "machine"}))
        raise ConfigError(f"{path.name}: unknown key '{min(unknown)}'; known keys: {known}")
    name = str(raw.get("name", name))
    try:
        if "machine" in raw:
            machines = [
                Machine(name=str(m["name"]), rack=str(m["rack"]), gpus=int(m["gpus"])) for m in raw["machine"]
            ]
            return Topology(machines, name=name)
        return Topology.grid(
            racks=int(raw["racks"]),
            machines_per_rack=int(raw["machines_per_rack"]),
            gpus_per_machine=int(raw["gpus_per_machine"]),
            name=name,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path.name}: {error} is missing or wrong; give {', '.join(sorted(GRID))} or [[machine]] entries"
        ) from None


def _from_csv(text: str, path: Path) -> list[Machine]:
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    machines = []
    try:
        for number, row in enumerate(rows):
            if {"ip", "ASW"} <= columns:
                machines.append(Machine(name=f"host{number}", rack=row["ASW"], gpus=LINGJUN_GPUS))
            else:
                machines.append(Machine(name=row["machine"], rack=row["rack"], gpus=int(row["gpus"])))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path.name}: column {error} is missing or wrong; give machine,rack,gpus or ip,DSW,PSW,ASW"
        ) from None
    return machines
