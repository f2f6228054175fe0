"""How fast the simulator is, and how the cost of a decision grows with the number of servers.

    python benchmarks/simulator.py            # or: make bench

Prints the simulated requests and segment executions per second for `random` on `paper` (one core), then the
time per routing decision and per simulated request at 3, 12, 64 and 512 servers.
"""

from time import perf_counter

from msgspec.structs import replace
from wide_cluster import repeated

from slimsched.serving.gateway.observation import Observation
from slimsched.serving.routers.registry import ROUTERS, make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate

SERVERS = (3, 12, 64, 512)


def widened(scenario: Scenario, servers: int) -> Scenario:
    """Repeat the paper's mix of devices up to this many servers."""
    cluster = repeated(scenario.cluster, servers)
    return replace(scenario, cluster=cluster, schedulers=(scenario.schedulers[0],) * servers)


def decision_s(scenario: Scenario, router: str) -> float:
    """Return the time of one routing decision; the servers' state changes between decisions."""
    cluster = scenario.cluster
    made = make_router(router, cluster, seed=0)
    seen = Observation(len(cluster))
    seen.count, seen.deadline_s, seen.arrival_rate_per_s = 16, 1e9, 1000.0 * len(cluster)
    seen.choices = cluster.models[0].tree.after[()]
    made.route(seen)
    count = 3000
    began_s = perf_counter()
    for number in range(count):
        seen.backlog_s[number % len(cluster)] += 0.001
        seen.outstanding[number % len(cluster)] += 1
        made.route(seen)
    return (perf_counter() - began_s) / count


def main() -> None:
    paper = load_scenario("paper", accuracy="paper")
    row = simulate(paper, "random").summary
    print(f"paper, random, as calibrated: {row.requests_per_wall_s:,.0f} requests/s of wall time")
    row = simulate(paper.with_load(rate_per_s=4000.0, seconds=30.0), "random").summary
    executions = 4 * row.completed / row.wall_s
    print(f"paper, random at 4,000/s (all answered): {row.requests_per_wall_s:,.0f} requests/s,", end=" ")
    print(f"{executions:,.0f} segment executions/s")

    print("\nmicroseconds per routing decision, by number of servers:")
    print(f"{'router':20}" + "".join(f"{servers:>9}" for servers in SERVERS))
    wide = {servers: widened(paper, servers) for servers in SERVERS}
    for router in ROUTERS:
        if router.startswith("ppo-"):
            continue  # a policy with state (1) is bound to the number of servers it was trained with
        times = [1e6 * decision_s(wide[servers], router) for servers in SERVERS]
        print(f"{router:20}" + "".join(f"{value:9.1f}" for value in times))

    print("\nmicroseconds of wall time per simulated request, by number of servers:")
    print(f"{'router':20}" + "".join(f"{servers:>9}" for servers in SERVERS))
    for router in ("random", "sed", "drift-plus-penalty", "lp"):
        cells = []
        for servers in SERVERS:
            rate = 1500.0 * servers
            scenario = wide[servers].with_load(rate_per_s=rate, seconds=60_000 / rate)
            row = simulate(scenario, router, bound_accuracy=1.0).summary
            cells.append(1e6 / row.requests_per_wall_s)
        print(f"{router:20}" + "".join(f"{value:9.1f}" for value in cells))


if __name__ == "__main__":
    main()
