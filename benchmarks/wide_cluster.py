"""A cluster of many servers, made from a small one."""

from msgspec.structs import replace

from slimsched.serving.domain.cluster import Cluster


def repeated(cluster: Cluster, servers: int) -> Cluster:
    """Repeat the cluster's mix of devices up to this many servers, behind a gateway that is no bottleneck."""
    return Cluster(
        names=[f"server-{number}" for number in range(servers)],
        profiles=[cluster.profiles[number % len(cluster)] for number in range(servers)],
        models=cluster.models,
        links=[cluster.links[0]] * servers,
        gateway_link=replace(cluster.gateway_link, bandwidth_bytes_per_s=1e12),
        batch_limit=cluster.batch_limit,
    )
