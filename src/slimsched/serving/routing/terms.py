"""What senders ask for limits what a router may choose: accuracy floors, energy ceilings."""

from collections.abc import Sequence

from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.key import KEYS
from slimsched.serving.domain.request import Request


def width_within_terms(cluster: Cluster, server: int, width: float, requests: Sequence[Request]) -> float:
    """The width nearest the router's that keeps every request's terms; where they clash, accuracy wins."""
    ceiling = min([_widest_affordable(cluster, server, request) for request in requests])
    floor = max([_narrowest_accurate(cluster, request) for request in requests])
    return max(floor, min(width, ceiling))


def _narrowest_accurate(cluster: Cluster, request: Request) -> float:
    """The narrowest width after which the accuracy asked for can still be reached."""
    reach = cluster.accuracy.best_reachable
    for width in WIDTHS:
        if reach((*request.widths, width)) >= request.min_accuracy:
            return width
    return max(WIDTHS, key=lambda width: reach((*request.widths, width)))


def _widest_affordable(cluster: Cluster, server: int, request: Request) -> float:
    """The widest width whose energy, with that before it and the least after it, stays within the limit."""
    if request.max_energy_j <= 0.0:
        return WIDTHS[-1]
    affordable = [
        w for w in WIDTHS if _least_j(cluster, server, (*request.widths, w)) <= request.max_energy_j
    ]
    return affordable[-1] if affordable else WIDTHS[0]


def _least_j(cluster: Cluster, server: int, widths: tuple[float, ...]) -> float:
    """Energy of these widths and the narrowest ones after them, in full batches on one server."""
    profile, size = cluster.profiles[server], cluster.batch_limit
    whole = widths + (WIDTHS[0],) * (SEGMENTS - len(widths))
    keys = [KEYS[s, w, whole[s - 1] if s else None] for s, w in enumerate(whole)]
    return sum(profile.energy_j(key, size) / size for key in keys)
