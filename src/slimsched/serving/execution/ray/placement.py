"""Where Ray may put a server: what its host asks for, in Ray's words."""

from typing import Any

from slimsched.serving.domain.host import Host


def actor_options(host: Host) -> dict[str, Any]:
    """CPUs by threads, GPUs by the share that MPS allows, custom resources and labels as they stand."""
    options: dict[str, Any] = {
        "num_cpus": host.threads,
        "resources": dict(host.resources),
        "scheduling_strategy": "SPREAD",  # so that one node's death takes few servers with it
    }
    if host.kind == "cuda":
        options |= {"num_cpus": 1, "num_gpus": host.mps_percentage / 100}
    if host.labels:
        options["label_selector"] = dict(host.labels)
    return options


def needs(host: Host) -> str:
    """The same in words, for someone who must find such a node."""
    options = actor_options(host)
    wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options["resources"]}
    words = [f"{amount:g} {name}" for name, amount in wanted.items() if amount]
    return ", ".join(words + [f"{key}={value}" for key, value in host.labels.items()])
