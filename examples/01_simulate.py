"""Simulate five seconds of the paper's cluster while a server dies and returns.

python examples/01_simulate.py
"""

from slimsched import Fault, load_scenario, simulate

scenario = load_scenario("paper").with_load(rate_per_s=4000.0, seconds=5.0)
scenario = scenario.with_faults(
    (
        Fault(server="server-0", at_s=1.0, kind="kill"),
        Fault(server="server-0", at_s=3.0, kind="restore"),
    )
)
run = simulate(scenario, "drift-plus-penalty", seed=0, drain=True).summary

print(f"{run.arrived} requests arrived, {run.completed} were answered, {run.lost} were lost")
print(f"accuracy {run.accuracy:.1%}, which is {run.bound_share:.1%} of what any router could reach")
print(f"latency p50 {1e3 * run.latency_p50_s:.0f} ms, p99 {1e3 * run.latency_p99_s:.0f} ms")
