"""Writes a placed gang as Kubernetes manifests. UNTESTED: no Kubernetes was at hand; read before you apply.

One Indexed Job for each number of GPUs a machine gives, pinned to its machines by host name, with one pod
a machine, and a headless Service so that the pods find each other. JSON, which kubectl reads as it is.
"""

import re
from typing import Any

from slimsched.jobs.domain.job import Job
from slimsched.jobs.domain.placement import Placement
from slimsched.kernel.errors import ConfigError

UNTESTED = "untested: written from Kubernetes' documentation, never applied to a cluster"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")

Manifest = dict[str, Any]


def manifests(job: Job, placement: Placement, *, image: str, command: list[str]) -> Manifest:
    """A List of manifests that runs a gang where it was placed."""
    name = f"slim-{job.id}".lower()
    if not _NAME.fullmatch(name):
        raise ConfigError(f"job id '{job.id}' is no Kubernetes name; use lower-case letters, digits and '-'")
    if not placement:
        raise ConfigError(f"job '{job.id}' has no placement; give one such as node1=8,node2=8")
    shares: dict[int, list[str]] = {}
    for machine, gpus in placement:
        shares.setdefault(gpus, []).append(machine)
    jobs = [_job(name, gpus, machines, image, command) for gpus, machines in shares.items()]
    return {"apiVersion": "v1", "kind": "List", "items": [_service(name), *jobs]}


def _metadata(name: str, gang: str) -> Manifest:
    return {"name": name, "labels": {"slim/gang": gang}, "annotations": {"slim/status": UNTESTED}}


def _service(name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, name),
        "spec": {"clusterIP": "None", "selector": {"slim/gang": name}},
    }


def _job(name: str, gpus: int, machines: list[str], image: str, command: list[str]) -> Manifest:
    on_machines = {"key": "kubernetes.io/hostname", "operator": "In", "values": machines}
    one_a_machine = {
        "labelSelector": {"matchLabels": {"slim/gang": name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [on_machines]}]
                }
            },
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one_a_machine]},
        },
        "containers": [
            {
                "name": "train",
                "image": image,
                "command": command,
                "resources": {"limits": {"nvidia.com/gpu": gpus}},
            }
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(f"{name}-{gpus}gpu", name),
        "spec": {
            "completionMode": "Indexed",
            "completions": len(machines),
            "parallelism": len(machines),
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"slim/gang": name}}, "spec": pod},
        },
    }
