"""Terms that senders set limit a router's choices: accuracy floors and energy ceilings."""

from collections.abc import Sequence
from functools import lru_cache

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Request


def choice_within_terms(cluster: Cluster, server: int, choice: int, requests: Sequence[Request]) -> int:
    """Return the choice nearest the router's that meets every request's terms; accuracy wins a conflict."""
    ceiling = min([_widest_affordable(cluster, server, request) for request in requests])
    floor = max([_narrowest_accurate(cluster, request) for request in requests])
    return max(floor, min(choice, ceiling))


@lru_cache(maxsize=16)
def least_energy_j(cluster: Cluster, model: int) -> float:
    """Return the least energy per example that any plan of a model takes on any server, in full batches."""
    tree = cluster.models[model].tree
    return min(
        _least_j(cluster, server, model, plan) for server in range(len(cluster)) for plan in tree.plans
    )


def _choices(cluster: Cluster, request: Request) -> list[int]:
    tree = cluster.models[request.model].tree
    return [int(choice) for choice in tree.choices[tree.row[request.path]]]


def _narrowest_accurate(cluster: Cluster, request: Request) -> int:
    """Return the narrowest choice after which the accuracy asked for can still be reached."""
    reach = cluster.models[request.model].quality.best_reachable
    choices = _choices(cluster, request)
    for choice in choices:
        if reach((*request.path, choice)) >= request.min_accuracy:
            return choice
    return max(choices, key=lambda choice: reach((*request.path, choice)))


def _widest_affordable(cluster: Cluster, server: int, request: Request) -> int:
    """Return the widest choice within the energy limit, counting the least energy of later segments."""
    choices = _choices(cluster, request)
    if request.max_energy_j <= 0.0:
        return choices[-1]
    affordable = [
        choice
        for choice in choices
        if _least_j(cluster, server, request.model, (*request.path, choice)) <= request.max_energy_j
    ]
    return affordable[-1] if affordable else choices[0]


def _least_j(cluster: Cluster, server: int, model: int, path: Path) -> float:
    """Return the energy of these choices and the narrowest ones after them, in full batches on one server."""
    profile, size, served = cluster.profiles[server], cluster.batch_limit, cluster.models[model]
    plan = served.tree.complete(path, widest=False)
    return sum(profile.energy_j(key, size) / size for key in served.legs(plan))
