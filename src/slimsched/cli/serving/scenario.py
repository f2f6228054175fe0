"""Options that choose a scenario and its load, shared by the simulating commands."""

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from slimsched.kernel.errors import ConfigError
from slimsched.serving.domain.fault import Fault
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.scenario_file import build_scenario, read_scenario
from slimsched.serving.telemetry.run_folder import About

ScenarioName = Annotated[
    str, typer.Option("--scenario", help="A shipped scenario: paper, edge-12, fleet-64.")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Your own scenario file instead.")]
Accuracy = Annotated[
    str | None,
    typer.Option("--accuracy", help="Accuracy table: measured (our network) or paper (its tables)."),
]
Arrivals = Annotated[
    str | None,
    typer.Option("--arrivals", help="poisson, bursty, fitted, diurnal, step, or the path of a trace file."),
]
Rate = Annotated[float | None, typer.Option("--rate", help="Mean arrival rate in requests a second.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Length of the run in simulated seconds.")]
Deadline = Annotated[
    float | None, typer.Option("--deadline-ms", help="Deadline of each request in milliseconds.")
]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same run.")]
Out = Annotated[Path | None, typer.Option("--out", help="Leave the run in this folder, for slim report.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON only.")]

_AT = re.compile(r"^(?P<server>[^@]+)@(?P<at>[0-9.]+)s?(?:x(?P<factor>[0-9.]+))?$")


def choose(
    name: str,
    config: Path | None,
    accuracy: str | None,
    arrivals: str | None,
    rate: float | None,
    seconds: float | None,
    deadline_ms: float | None = None,
) -> tuple[Scenario, dict[str, Any], Path]:
    """The scenario asked for, with the file it came from."""
    raw, path = read_scenario(str(config) if config is not None else name)
    if accuracy is not None:
        raw = {**raw, "accuracy": accuracy}
    scenario = build_scenario(raw, path.name, path.parent)
    deadline_s = None if deadline_ms is None else deadline_ms / 1000
    scenario = scenario.with_load(arrivals=arrivals, rate_per_s=rate, seconds=seconds, deadline_s=deadline_s)
    return scenario, raw, path


def about(scenario: Scenario, raw: dict[str, Any], seed: int, seeds: int = 1) -> About:
    """What a run folder says of a run: the scenario file with everything the command line changed."""
    load, timeline = msgspec.to_builtins(scenario.load), msgspec.to_builtins(scenario.faults)
    return About(
        kind="requests",
        title=f"{scenario.name}: {scenario.description}" if scenario.description else scenario.name,
        seed=seed,
        seeds=seeds,
        config={**raw, "load": load} | ({"fault": list(timeline)} if timeline else {}),
        faults=scenario.faults,
    )


def arrival_s(scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """When the requests of a run come: the seed says it."""
    stream = scenario.load.stream(seed, scenario.cluster.accuracy.images)
    return np.array([request.arrival_s for request in stream.take_until(inf)])


def faults(
    kill: list[str], restore: list[str], slow: list[str], leave: Sequence[str] = ()
) -> tuple[Fault, ...]:
    """Read 'server-0@10s', and 'server-0@10sx2.5' for a slow-down."""
    given = [("kill", text) for text in kill] + [("restore", text) for text in restore]
    given += [("leave", text) for text in leave]
    given += [("slow", text) for text in slow]
    found = []
    for kind, text in given:
        match = _AT.match(text)
        if match is None or (kind == "slow") != (match["factor"] is not None):
            form = "server-0@10sx2" if kind == "slow" else "server-0@10s"
            raise ConfigError(f"--{kind} '{text}' is not understood; write it as {form}")
        factor = float(match["factor"] or 1.0)
        if factor <= 0:
            raise ConfigError(f"--slow '{text}': the factor must be above 0; 2 means half as fast")
        found.append(Fault(server=match["server"], at_s=float(match["at"]), kind=kind, slowdown=factor))  # type: ignore[arg-type]
    return tuple(sorted(found, key=lambda fault: fault.at_s))
