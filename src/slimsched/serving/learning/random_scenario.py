"""Random clusters and loads, for training that must carry over to other clusters."""

import numpy as np
from msgspec.structs import replace
from numpy.random import Generator

from slimsched.serving.domain.cluster import Cluster, Fault, Link
from slimsched.serving.domain.profile import Device, Profile, modelled_profile
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.simulated.cluster import TelemetryOptions
from slimsched.serving.routing.fluid import capacity_per_s
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.workload.load import Load

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
