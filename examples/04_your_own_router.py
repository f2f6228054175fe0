"""Write a router of your own and compare it with one of ours.

A router looks at the requests at the head of the queue. It decides to which server they go, at which width
and how many at once, or returns None to wait.

python examples/04_your_own_router.py
slim compare --seconds 2 --routers random,examples/04_your_own_router.py:CalmRouter
"""

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.execution.scenario_file import load_scenario
from slimsched.serving.execution.simulated.simulation import simulate
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Route


class CalmRouter:
    """Picks the server with the least work ahead; runs wide while queues are short, narrow when they grow."""

    def __init__(self, cluster: Cluster) -> None:
        self._group = cluster.batch_limit

    def route(self, seen: Observation) -> Route:
        """Decide by the gateway's count of work that is sent and not yet back."""
        ahead_s = seen.backlog_s + seen.penalty_s  # the penalty of a dead server is infinite
        server = int(ahead_s.argmin())
        wait_s = float(ahead_s[server])
        width = 1.0 if wait_s < 0.05 else 0.75 if wait_s < 0.1 else 0.5 if wait_s < 0.2 else 0.25
        return Route(server, width, self._group, f"{1e3 * wait_s:.0f} ms of work ahead")


def main() -> None:
    """Simulate both. A router of yours is named by its file and class, here and in every command."""
    scenario = load_scenario("paper").with_load(seconds=2.0)
    for name, router in {"random": "random", "calm": f"{__file__}:CalmRouter"}.items():
        row = simulate(scenario, router, seed=0).summary
        print(f"{name:8} {row.bound_share:6.1%} of the bound, p99 {1e3 * row.latency_p99_s:.0f} ms")


if __name__ == "__main__":
    main()
