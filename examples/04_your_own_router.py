"""Write a router of your own and compare it with one of ours.

A router looks at the requests at the head of the queue. It decides to which server they go, which choice
(here: which width) they run next and how many at once, or returns None to wait.

python examples/04_your_own_router.py
slim compare --seconds 2 --routers random,examples/04_your_own_router.py:CalmRouter
"""

from slimsched import Cluster, Observation, Route, load_scenario, simulate


class CalmRouter:
    """Picks the server with the least work ahead; runs wide while queues are short, narrow when they grow."""

    def __init__(self, cluster: Cluster) -> None:
        self._group = cluster.batch_limit

    def route(self, seen: Observation) -> Route:
        """Decide by the gateway's count of work that is sent and not yet back."""
        ahead_s = seen.backlog_s + seen.penalty_s  # the penalty of a dead server is infinite
        server = int(ahead_s.argmin())
        wait_s = float(ahead_s[server])
        narrower = int(wait_s / 0.05)  # one step for each 50 ms of work; choices are narrowest first
        choice = seen.choices[max(0, len(seen.choices) - 1 - narrower)]
        return Route(server, choice, self._group, f"{1e3 * wait_s:.0f} ms of work ahead")


def main() -> None:
    """Simulate both. In commands, a router of yours is named by its file and class."""
    scenario = load_scenario("paper").with_load(seconds=2.0)
    for router in ("random", CalmRouter):
        row = simulate(scenario, router, seed=0).summary
        print(f"{row.router:10} {row.bound_share:6.1%} of the bound, p99 {1e3 * row.latency_p99_s:.0f} ms")


if __name__ == "__main__":
    main()
