"""The worlds that training meets: a scenario at many loads, random clusters, and worlds that are disturbed.

A `Curriculum` draws one of them for each episode.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.random import Generator

from slimsched.core.config import Count, PositiveSeconds, Share
from slimsched.serving.domain.cluster import Cluster, Fault, Link
from slimsched.serving.domain.profile import Device, Profile, ServiceCost, ServiceNoise, modelled_profile
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.learning.ppo import Draw
from slimsched.serving.scenario.scenario import Scenario, TelemetryOptions
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.workload.load import Load

# -- Random clusters and loads, for training that must carry over to other clusters.

ARRIVALS = ("poisson", "poisson", "bursty", "diurnal", "step")

MAX_RATE_PER_S = 12_000.0
"""The highest rate to draw: it already overloads these small devices, more only takes longer to simulate."""


def random_scenario(like: Scenario, rng: Generator, *, requests: int = 6_000) -> Scenario:
    """Draw a cluster of 2 to 8 servers of 1 to 3 kinds, its links, and a load from easy to overloaded.

    The model and its accuracies come from `like`. The run is long enough for about `requests` arrivals.
    """
    kinds = [_device(rng, like, number) for number in range(int(rng.integers(1, 4)))]
    servers = int(rng.integers(2, 9))
    profiles = [kinds[int(rng.integers(len(kinds)))] for _ in range(servers)]
    bandwidth = float(np.exp(rng.uniform(np.log(100e6), np.log(1.2e9))))
    link = Link(bandwidth_bytes_per_s=bandwidth, latency_s=float(rng.uniform(0.0001, 0.002)))
    cluster = Cluster(
        names=[f"server-{number}" for number in range(servers)],
        profiles=profiles,
        models=like.cluster.models,
        links=[link] * servers,
        gateway_link=replace(link, bandwidth_bytes_per_s=max(500e6, 4 * bandwidth)),
        batch_limit=like.cluster.batch_limit,
    )
    spec = cluster.models[0].spec
    full, narrow = capacity_per_s(cluster, spec.widest), capacity_per_s(cluster, spec.narrowest)
    highest = max(full, min(0.8 * narrow, MAX_RATE_PER_S))
    rate_per_s = float(np.exp(rng.uniform(np.log(0.5 * full), np.log(highest))))
    seconds = float(np.clip(requests / rate_per_s, 0.5, 6.0))
    kind = ARRIVALS[int(rng.integers(len(ARRIVALS)))]
    shape = {"bursty": {"calm_s": 0.8, "burst_s": 0.2}, "diurnal": {"period_s": seconds}}.get(kind, {})
    load = Load(arrivals=kind, rate_per_s=rate_per_s, seconds=seconds, shape=shape, deadline_s=1.0)
    return Scenario(
        name="random",
        description="drawn for training",
        cluster=cluster,
        schedulers=(SchedulerOptions(batch_limit=cluster.batch_limit, vram_cap_bytes=5_000_000_000),)
        * servers,
        gateway=replace(like.gateway, step_s=float(rng.choice([0.002, 0.005]))),
        telemetry=TelemetryOptions(delay_s=float(rng.choice([0.005, 0.2]))),
        load=load,
        faults=_faults(rng, cluster, seconds),
    )


def _device(rng: Generator, like: Scenario, number: int) -> Profile:
    """Draw a device between a small edge box and a large GPU."""
    flop_per_s = float(np.exp(rng.uniform(np.log(0.2e12), np.log(2e12))))
    device = Device(
        name=f"random-{number}",
        source="drawn",
        peak_flop_per_s=flop_per_s,
        memory_bytes_per_s=flop_per_s * 0.1,
        memory_bytes=8 * 2**30,
        idle_w=20.0,
        peak_w=float(rng.uniform(40.0, 300.0)),
        launch_s=float(rng.uniform(0.0002, 0.001)),
        efficiency=0.5,
        element_bytes=2,
    )
    return Profile.joined([modelled_profile(device, model) for model in like.cluster.models])


def _faults(rng: Generator, cluster: Cluster, seconds: float) -> tuple[Fault, ...]:
    """Draw faults: in one scenario of four, a server slows down or dies."""
    if len(cluster) < 3 or rng.uniform() > 0.25:
        return ()
    server = cluster.names[int(rng.integers(len(cluster)))]
    if rng.uniform() < 0.5:
        return (Fault(server=server, at_s=0.4 * seconds, kind="slow", slowdown=float(rng.uniform(1.5, 4.0))),)
    return (Fault(server=server, at_s=0.4 * seconds, kind="kill"),)


# -- Disturbances: ways in which the simulated world differs from the router's model of it.
#
# A router knows profiles, links and what it sent. Each disturbance makes one of these wrong, or the load
# uneven. Training draws them at random; `benchmarks/paper/run.py conditions` shows every one on its own.


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
    return _in_turns(scenario, server, "slow", factor, period_s)


def weak_link(scenario: Scenario, server: int, factor: float, period_s: float) -> Scenario:
    """Let a server's link lose bandwidth for half of each period, as Wi-Fi does."""
    return _in_turns(scenario, server, "slow-link", factor, period_s)


def old_telemetry(scenario: Scenario, delay_s: float) -> Scenario:
    """Let telemetry reach the gateway late."""
    return replace(scenario, telemetry=replace(scenario.telemetry, delay_s=delay_s))


def _in_turns(
    scenario: Scenario, server: int, kind: Literal["slow", "slow-link"], factor: float, period_s: float
) -> Scenario:
    name = scenario.cluster.names[server]
    return scenario.with_faults(
        tuple(
            Fault(
                server=name,
                at_s=(0.5 + 0.5 * turn) * period_s,
                kind=kind,
                slowdown=factor if turn % 2 == 0 else 1.0,
            )
            for turn in range(int(2 * scenario.load.seconds / period_s))
        )
    )


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


LEAST_LOAD = 4000 / 9200
"""Training covers loads from this share of the scenario's rate: `paper` queues nothing at 4,000/s."""

DISTURBED = 0.4
"""Share of episodes in which the world is not what the model says, for the policy that sees the head."""


class Curriculum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Episodes run the scenario at a load drawn evenly from `rates_per_s`, or a drawn cluster.

    `drawn` is the share of drawn clusters. They differ in servers, links, arrivals, faults and the age of
    telemetry (`random_scenario`). In a share `disturbed` of all episodes the devices, the links or the load
    are not what the router's model says (`disturb`).
    """

    scenario: str
    rates_per_s: tuple[float, float]
    episode_s: PositiveSeconds = 12.0
    drawn: Share = 0.0
    disturbed: Share = 0.0
    drawn_requests: Count = 15_000

    def draw(self, like: Scenario) -> Draw:
        """Return the function that draws the scenario of the next episode."""

        def drawn(rng: np.random.Generator) -> Scenario:
            if rng.uniform() < self.drawn:
                episode = random_scenario(like, rng, requests=self.drawn_requests)
            else:
                rate_per_s = float(rng.uniform(*self.rates_per_s))
                episode = like.with_load(seconds=self.episode_s, rate_per_s=rate_per_s)
            return disturb(episode, rng) if rng.uniform() < self.disturbed else episode

        return drawn


def curriculum_of(scenario: Scenario, *, episode_s: float, drawn: float, disturbed: float) -> Curriculum:
    """Return the curriculum for one scenario: loads up to its own rate."""
    rate_per_s = scenario.load.rate_per_s
    return Curriculum(
        scenario=scenario.name,
        rates_per_s=(LEAST_LOAD * rate_per_s, rate_per_s),
        episode_s=episode_s,
        drawn=drawn,
        disturbed=disturbed,
    )
