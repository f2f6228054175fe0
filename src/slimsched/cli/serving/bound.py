"""`slim bound`: the best accuracy any router could give at a load."""

import json
from typing import Annotated

import typer
from msgspec import Struct, to_builtins
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, with_options
from slimsched.cli.serving.scenario import LoadOptions, Rate, ScenarioOptions
from slimsched.core.config import Amount
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.fluid import FluidOptimum, capacity_per_s, fluid_optimum
from slimsched.serving.routing.sure_bound import sure_optimum


class Bound(Struct, frozen=True, kw_only=True):
    """The fluid optimum of a scenario, and what its cluster can carry."""

    scenario: str
    rate_per_s: float
    accuracy: float
    served_share: float
    active_power_w: float
    accuracies: dict[str, float]
    capacity_per_s: dict[str, float]
    mix_per_s: dict[str, float]
    sure_accuracy: float | None = None
    sure_further: float | None = None


@with_options
def command(
    scenario: ScenarioOptions,
    rate: Rate = None,
    power: Annotated[
        Amount | None, typer.Option("--power", help="Power budget of the whole cluster, in watts above idle.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the fluid bounds on accuracy, and how much the cluster can carry at each choice.

    The first bound holds for routers that do not look at examples; the second for routers that stop when the
    model is sure and go on with a wider plan when it is not.

    Examples:

      slim bound --scenario paper

      slim bound --scenario edge-12 --rate 4000 --power 150 --json
    """
    bound = find_bound(scenario.read().under(LoadOptions(rate=rate)).scenario, power)
    if as_json:
        print(json.dumps(to_builtins(bound), indent=1))
    else:
        _print(Console(), bound)


def find_bound(scenario: Scenario, power_w: float | None) -> Bound:
    """Solve the fluid problem at the scenario's rate."""
    cluster, rate_per_s = scenario.cluster, scenario.load.rate_per_s
    shares = scenario.shares or None
    best = fluid_optimum(cluster, rate_per_s, shares=shares, active_power_w=power_w)
    sure = sure_optimum(cluster, rate_per_s, shares=shares, active_power_w=power_w)
    return Bound(
        scenario=scenario.name,
        rate_per_s=rate_per_s,
        accuracy=best.accuracy,
        served_share=best.served_share,
        active_power_w=best.power_w,
        accuracies={model.name: best.accuracies[model.number] for model in cluster.models},
        capacity_per_s=_capacities(cluster),
        mix_per_s=_mix(cluster, best),
        sure_accuracy=None if sure is None else sure.accuracy,
        sure_further=None if sure is None else sure.further,
    )


def _capacities(cluster: Cluster) -> dict[str, float]:
    """What the cluster carries by plans that stay at one choice, alone on it."""
    capacities: dict[str, float] = {}
    for model in cluster.models:
        prefix = f"{model.name}: " if len(cluster.models) > 1 else ""
        for choice in model.tree.choices[0]:
            plan = model.tree.stay((int(choice),))
            names = {model.spec.segments[at][one] for at, one in enumerate(plan)}
            text = names.pop() if len(names) == 1 else model.spec.text(plan)
            capacities[prefix + text] = capacity_per_s(cluster, plan, model.number)
    return capacities


def _mix(cluster: Cluster, best: FluidOptimum) -> dict[str, float]:
    """The five plans that the optimum serves most."""
    rates = {
        (f"{model.name}: " if len(cluster.models) > 1 else "") + model.spec.text(plan): float(rate)
        for model, by_plan in zip(cluster.models, best.rates_per_s, strict=True)
        for plan, rate in zip(model.tree.plans, by_plan, strict=True)
        if rate > 1e-6
    }
    return dict(sorted(rates.items(), key=lambda pair: -pair[1])[:5])


def _print(console: Console, bound: Bound) -> None:
    console.print(
        f"{bound.scenario} at {bound.rate_per_s:g} requests per second: accuracy at most "
        f"{100 * bound.accuracy:.2f} %, {100 * bound.served_share:.1f} % served, "
        f"{bound.active_power_w:.0f} W above idle"
    )
    if bound.sure_accuracy is not None and bound.sure_further is not None:
        console.print(
            f"This holds for routers that do not look at examples. Stopping when sure: at most "
            f"{100 * bound.sure_accuracy:.2f} %, with a further plan for {100 * bound.sure_further:.0f} % of "
            "requests"
        )
    if len(bound.accuracies) > 1:
        parts = ", ".join(f"{name} {100 * value:.2f} %" for name, value in bound.accuracies.items())
        console.print(f"by model: {parts}")
    mix = Table("plan", "requests/s", title="What the optimum serves", title_justify="left")
    for plan, rate_per_s in bound.mix_per_s.items():
        mix.add_row(plan, f"{rate_per_s:,.0f}")
    console.print(mix)
    capacity = Table(
        "choice", "capacity, requests/s", title="What the cluster can carry", title_justify="left"
    )
    for choice, rate_per_s in bound.capacity_per_s.items():
        capacity.add_row(choice, f"{rate_per_s:,.0f}")
    console.print(capacity)
