"""`slim bound`: the best accuracy any router could give at a load."""

import json
from typing import Annotated

import numpy as np
import typer
from msgspec import Struct, to_builtins
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, with_options
from slimsched.cli.serving.scenario import LoadOptions, Rate, ScenarioOptions
from slimsched.kernel.errors import ConfigError
from slimsched.models.width import WIDTH_TUPLES, WIDTHS, format_widths
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum


class Bound(Struct, frozen=True, kw_only=True):
    """The fluid optimum of a scenario, and what its cluster can carry."""

    scenario: str
    rate_per_s: float
    accuracy: float
    served_share: float
    active_power_w: float
    capacity_per_s: dict[str, float]
    mix_per_s: dict[str, float]


@with_options
def command(
    scenario: ScenarioOptions,
    rate: Rate = None,
    power: Annotated[
        float | None, typer.Option("--power", help="Power budget of the whole cluster, in watts above idle.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the fluid bound on accuracy, and how much the cluster can carry at each width.

    Examples:

      slim bound --scenario paper

      slim bound --scenario edge-12 --rate 4000 --power 150 --json
    """
    if power is not None and power < 0:
        raise ConfigError(f"--power is {power:g}; give watts, 0 or above")
    bound = find_bound(scenario.read().under(LoadOptions(rate=rate)).scenario, power)
    if as_json:
        print(json.dumps(to_builtins(bound), indent=1))
    else:
        _print(Console(), bound)


def find_bound(scenario: Scenario, power_w: float | None) -> Bound:
    """Solve the fluid problem at the scenario's rate."""
    cluster, rate_per_s = scenario.cluster, scenario.load.rate_per_s
    best = fluid_optimum(cluster, rate_per_s, active_power_w=power_w)
    top = np.argsort(-best.rates_per_s)[:5]
    return Bound(
        scenario=scenario.name,
        rate_per_s=rate_per_s,
        accuracy=best.accuracy,
        served_share=best.served_share,
        active_power_w=best.power_w,
        capacity_per_s={f"{width:g}": capacity_per_s(cluster, (width,) * 4) for width in WIDTHS},
        mix_per_s={
            format_widths(WIDTH_TUPLES[i]): float(best.rates_per_s[i])
            for i in top
            if best.rates_per_s[i] > 1e-6
        },
    )


def _print(console: Console, bound: Bound) -> None:
    console.print(
        f"{bound.scenario} at {bound.rate_per_s:g} requests per second: accuracy at most "
        f"{100 * bound.accuracy:.2f} %, {100 * bound.served_share:.1f} % served, "
        f"{bound.active_power_w:.0f} W above idle"
    )
    mix = Table("widths", "requests/s", title="What the optimum serves", title_justify="left")
    for widths, rate_per_s in bound.mix_per_s.items():
        mix.add_row(widths, f"{rate_per_s:,.0f}")
    console.print(mix)
    capacity = Table(
        "uniform width", "capacity, requests/s", title="What the cluster can carry", title_justify="left"
    )
    for width, rate_per_s in bound.capacity_per_s.items():
        capacity.add_row(width, f"{rate_per_s:,.0f}")
    console.print(capacity)
