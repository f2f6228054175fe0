"""Compare routers with each other and with the fluid bound, on the same requests over two seeds.

python examples/02_compare.py
"""

from slimsched import compare, load_scenario

scenario = load_scenario("edge-12").with_load(seconds=1.0)
results = compare(scenario, ["random", "sed", "drift-plus-penalty"], seeds=2)
for result in results:
    row = result.summary
    print(f"{row.router:20} accuracy {row.accuracy:6.1%}  p99 {1e3 * row.latency_p99_s:6.0f} ms", end="")
    print(f"  of bound {row.bound_share:6.1%} ± {result.ci95['bound_share']:.1%}")
best = max(results, key=lambda result: result.summary.bound_share).summary
print(f"closest to the bound: {best.router}")
