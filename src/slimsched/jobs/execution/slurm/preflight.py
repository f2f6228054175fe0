"""Whether a Slurm can be driven from outside at all, and what will hurt."""

import re

from msgspec import Struct

from slimsched.jobs.execution.slurm.client import SlurmClient
from slimsched.jobs.execution.slurm.error import SlurmError

OLDEST = (22, 5)


class Preflight(Struct, frozen=True, kw_only=True):
    """What the controller must know of a Slurm before it starts."""

    cluster: str
    racks: dict[str, str]
    warnings: tuple[str, ...]


def check(client: SlurmClient, *, partition: str | None = None) -> Preflight:
    """Refuse a Slurm that cannot do what we need, and warn of settings that make it slow or blind."""
    version = client.version()
    if version < OLDEST:
        raise SlurmError(f"Slurm {version[0]}.{version[1]:02} is too old; 22.05 or newer is needed")
    configuration = client.configuration()
    select = configuration.get("SelectType", "")
    if select != "select/cons_tres":
        raise SlurmError(f"SelectType is {select}, which cannot place GPUs; set SelectType=select/cons_tres")
    nodes = client.nodes()
    if partition is not None and not any(partition in node.partitions for node in nodes):
        known = sorted({name for node in nodes for name in node.partitions})
        raise SlurmError(f"no partition '{partition}' in Slurm; known: {', '.join(known)}")
    if not any(node.gpus for node in nodes if partition is None or partition in node.partitions):
        raise SlurmError("no machine has GPUs; set GresTypes=gpu, Gres=gpu:N on the nodes and gres.conf")
    racks = client.racks()
    return Preflight(
        cluster=configuration.get("ClusterName", "slurm"),
        racks=racks,
        warnings=tuple(_warnings(configuration, racks)),
    )


def _warnings(configuration: dict[str, str], racks: dict[str, str]) -> list[str]:
    warnings = []
    if not racks:
        warnings.append("topology.conf names no racks: all machines count as one rack")
    expire = re.search(r"cred_expire=(\d+)", configuration.get("AuthInfo", ""))
    expire_s = int(expire[1]) if expire else 120
    if expire_s > 30:
        warnings.append(
            f"a preempted gang cannot start again for {expire_s} s; AuthInfo=cred_expire=5 shortens that"
        )
    return warnings
