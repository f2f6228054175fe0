"""Disturbances: ways in which the simulated world differs from the router's model of it.

A router knows profiles, links and what it sent. Each disturbance makes one of these wrong, or the load
uneven. Training draws them at random; `benchmarks/paper/run.py conditions` shows every one on its own.
"""

from collections.abc import Callable

from msgspec.structs import replace
from numpy.random import Generator

from slimsched.serving.domain.cluster import Fault
from slimsched.serving.domain.profile import ServiceCost, ServiceNoise
from slimsched.serving.execution.scenario import Scenario


def wrong_profiles(scenario: Scenario, factors: tuple[float, ...]) -> Scenario:
    """Multiply what each server takes, compared with its profile, by these factors."""
    servers = range(len(scenario.cluster))
    costs = tuple(ServiceCost(slowdown=factors[server % len(factors)]) for server in servers)
    return replace(scenario, costs=costs)


def hidden_overhead(scenario: Scenario, overhead_s: float) -> Scenario:
    """Let every batch take longer by a fixed time that no profile knows, such as a slow host's."""
    return replace(scenario, costs=(ServiceCost(overhead_s=overhead_s),) * len(scenario.cluster))


def noisy(scenario: Scenario, batches: float, drift: float) -> Scenario:
    """Let batch times spread and drift more than measured."""
    return replace(scenario, noise=ServiceNoise(batches=batches, drift=drift))


def throttled(scenario: Scenario, server: int, factor: float, period_s: float) -> Scenario:
    """Let a device slow down for half of each period, as one that gets too hot does, or that others use."""
    return scenario.with_faults(_in_turns(scenario, server, "slow", factor, period_s))


def weak_link(scenario: Scenario, server: int, factor: float, period_s: float) -> Scenario:
    """Let a server's link lose bandwidth for half of each period, as Wi-Fi does."""
    return scenario.with_faults(_in_turns(scenario, server, "slow-link", factor, period_s))


def old_telemetry(scenario: Scenario, delay_s: float) -> Scenario:
    """Let telemetry reach the gateway late."""
    return replace(scenario, telemetry=replace(scenario.telemetry, delay_s=delay_s))


def _in_turns(
    scenario: Scenario, server: int, kind: str, factor: float, period_s: float
) -> tuple[Fault, ...]:
    name, faults = scenario.cluster.names[server], []
    for turn in range(int(2 * scenario.load.seconds / period_s)):
        slowdown = factor if turn % 2 == 0 else 1.0
        at_s = (0.5 + 0.5 * turn) * period_s
        faults.append(
            Fault(server=name, at_s=at_s, kind="slow", slowdown=slowdown)
            if kind == "slow"
            else Fault(server=name, at_s=at_s, kind="slow-link", slowdown=slowdown)
        )
    return tuple(faults)


def disturb(scenario: Scenario, rng: Generator) -> Scenario:
    """Return the scenario with one disturbance, drawn at random."""
    server = int(rng.integers(len(scenario.cluster)))
    kinds: list[Callable[[], Scenario]] = [
        lambda: wrong_profiles(scenario, tuple(rng.uniform(0.7, 1.5, 4).tolist())),
        lambda: hidden_overhead(scenario, float(rng.uniform(0.0003, 0.002))),
        lambda: noisy(scenario, float(rng.uniform(2.0, 5.0)), float(rng.uniform(0.05, 0.2))),
        lambda: throttled(scenario, server, float(rng.uniform(1.5, 3.0)), float(rng.uniform(0.5, 3.0))),
        lambda: weak_link(scenario, server, float(rng.uniform(2.0, 8.0)), float(rng.uniform(0.5, 3.0))),
        lambda: old_telemetry(throttled(scenario, server, 2.0, 1.0), float(rng.uniform(0.3, 1.5))),
        lambda: replace(scenario, load=replace(scenario.load, arrivals="bursty", shape={})),
        lambda: replace(scenario, load=replace(scenario.load, arrivals="step", shape={})),
    ]
    return kinds[int(rng.integers(len(kinds)))]()
