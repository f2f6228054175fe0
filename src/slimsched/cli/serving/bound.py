"""`slim bound`: the best accuracy any router could give at a load."""

import json
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli.serving import scenario as options
from slimsched.kernel.errors import ConfigError
from slimsched.models.slimresnet.width import WIDTH_TUPLES, WIDTHS, format_widths
from slimsched.serving.routing.fluid import capacity_per_s, fluid_optimum


def command(
    scenario: options.ScenarioName = "paper",
    config: options.ConfigFile = None,
    accuracy: options.Accuracy = None,
    rate: options.Rate = None,
    power: Annotated[
        float | None, typer.Option("--power", help="Budget in watts above idle for the whole cluster.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the fluid bound on accuracy, and how much the cluster can carry at each width.

    Examples:

      slim bound --scenario paper

      slim bound --scenario edge-12 --rate 4000 --power 150 --json
    """
    chosen, _, _ = options.choose(scenario, config, accuracy, None, rate, None)
    if power is not None and power < 0:
        raise ConfigError(f"--power is {power:g}; give watts, 0 or above")
    cluster, rate_per_s = chosen.cluster, chosen.load.rate_per_s
    best = fluid_optimum(cluster, rate_per_s, active_power_w=power)
    capacity = {f"{width:g}": capacity_per_s(cluster, (width,) * 4) for width in WIDTHS}
    top = np.argsort(-best.rates_per_s)[:5]
    mix = {
        format_widths(WIDTH_TUPLES[i]): float(best.rates_per_s[i]) for i in top if best.rates_per_s[i] > 1e-6
    }
    if as_json:
        row = {
            "scenario": chosen.name,
            "rate_per_s": rate_per_s,
            "accuracy": best.accuracy,
            "served_share": best.served_share,
            "active_power_w": best.power_w,
            "capacity_per_s": capacity,
            "mix_per_s": mix,
        }
        print(json.dumps(row, indent=1))
        return
    console = Console()
    console.print(
        f"{chosen.name} at {rate_per_s:g} requests a second: accuracy at most {100 * best.accuracy:.2f} %, "
        f"{100 * best.served_share:.1f} % served, {best.power_w:.0f} W above idle"
    )
    table = Table("widths", "requests/s", title="What the optimum serves", title_justify="left")
    for widths, share in mix.items():
        table.add_row(widths, f"{share:,.0f}")
    console.print(table)
    table = Table(
        "uniform width", "capacity, requests/s", title="What the cluster can carry", title_justify="left"
    )
    for width, value in capacity.items():
        table.add_row(width, f"{value:,.0f}")
    console.print(table)
