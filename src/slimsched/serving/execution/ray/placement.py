"""The resources that a server needs, as options of a Ray actor."""

from typing import Any

from slimsched.serving.domain.cluster import Host


def actor_options(host: Host) -> dict[str, Any]:
    """Return actor options: CPUs by threads, GPUs by MPS share, custom resources and labels unchanged."""
    options: dict[str, Any] = {
        "num_cpus": host.threads,
        "resources": dict(host.resources),
        "scheduling_strategy": "SPREAD",  # so that a dead node takes few servers with it
    }
    if host.kind == "cuda":
        options |= {"num_cpus": 1, "num_gpus": host.mps_percentage / 100}
    if host.labels:
        options["label_selector"] = dict(host.labels)
    return options


def needs(host: Host) -> str:
    """Describe the resources in words, for error messages."""
    options = actor_options(host)
    wanted = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0), **options["resources"]}
    words = [f"{amount:g} {name}" for name, amount in wanted.items() if amount]
    return ", ".join(words + [f"{key}={value}" for key, value in host.labels.items()])
