"""`slim validate`: live against simulated."""

import json
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from slimsched.cli.failure import need
from slimsched.cli.options import AsJson, Seed, with_options
from slimsched.cli.serving.scenario import (
    Data,
    GoalText,
    LiveScenarioOptions,
    RouterSpec,
    check_goal,
    check_reach,
)
from slimsched.core.config import ConfigError, Factor, RunSeconds, convert
from slimsched.serving.execution.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.execution.live.validation import Validation


class ValidateOptions(Struct, frozen=True, kw_only=True):
    """What to run, live and simulated."""

    router: RouterSpec = "sed"
    goal: GoalText = None
    loads: Annotated[
        str, typer.Option("--loads", help="Loads, as shares of the capacity with the widest plans.")
    ] = "0.3,0.7,0.95"
    seconds: Annotated[RunSeconds, typer.Option("--seconds", help="Length of each live run.")] = 20.0
    data: Data = None
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--as-configured",
            help="Measure first what serving costs beyond the profiles, or use the scenario's figures.",
        ),
    ] = True
    seed: Seed = 0

    def shares(self) -> list[float]:
        """Read the loads."""
        try:
            return convert([float(word) for word in self.loads.split(",")], list[Factor], "--loads")
        except ValueError:
            raise ConfigError(f"--loads '{self.loads}' is not understood; write it as 0.3,0.7") from None


@with_options
def command(scenario: LiveScenarioOptions, validated: ValidateOptions, as_json: AsJson = False) -> None:
    """Run the same arrivals live on this machine and simulated, and print the simulator's error.

    A separate run, at half of the largest load and with other arrivals, first measures what batches cost in
    service beyond their profiles (the server's own work, shared cores, cold caches), and the processor time
    of the gateway per event and per request. The simulation knows nothing else of the live runs.

    Example:

      slim validate --scenario laptop --loads 0.3,0.7 --json
    """
    need("torch")
    check_goal(validated.goal, [validated.router])
    chosen = scenario.read(validated.goal).scenario
    check_reach([validated.router], chosen)
    validation, kind = _run(chosen, validated)
    if as_json:
        rows = {
            "scenario": chosen.name,
            "router": validated.router,
            "examples": kind,
            **msgspec.to_builtins(validation),
        }
        print(json.dumps(rows, indent=1))
    else:
        _print(Console(), chosen, validation)
        Console().print(f"router {validated.router}, {kind}, {validated.seconds:g} s per run")


def _run(scenario: Scenario, validated: ValidateOptions) -> "tuple[Validation, str]":
    """Run live and simulated; return the comparison, and what the examples were."""
    from slimsched.cli.serving.examples import describe, examples_of
    from slimsched.serving.execution.live.validation import Validator

    shares = validated.shares()
    examples = examples_of(scenario.cluster.models, validated.data)
    with Console(stderr=True).status("starting") as status:
        validator = Validator(
            scenario,
            validated.router,
            examples,
            seconds=validated.seconds,
            seed=validated.seed,
            progress=status.update,
        )
        return validator.validate(shares, calibrate=validated.calibrate), describe(examples)


def _print(console: Console, scenario: Scenario, validation: "Validation") -> None:
    from slimsched.serving.execution.live.validation import FIGURES

    table = Table("load", "figure", "live", "simulated", "error", "at the run's own speed")
    for row in validation.loads:
        for name in FIGURES:
            errors = [f"{100 * one[name]:+.1f} %" for one in (row.error, row.error_at_own_speed)]
            table.add_row(
                f"{row.load:.0%}", name, f"{row.live[name]:.4g}", f"{row.simulated[name]:.4g}", *errors
            )
    console.print(table)
    for server, cost in zip(scenario.cluster.names, validation.costs, strict=False):
        text = f"{server}: a batch takes {1e3 * cost.overhead_s:.2f} ms + {cost.slowdown:.2f} × its profile"
        console.print(text, highlight=False)
    gateway = validation.gateway
    text = f"the gateway takes {1e6 * gateway.event_s:.0f} µs per event + {1e6 * gateway.request_s:.0f} µs"
    console.print(f"{text} per request in it", highlight=False)
    console.print(f"a message between gateway and server takes {1e3 * validation.message_s:.2f} ms")
