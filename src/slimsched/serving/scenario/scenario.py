"""A scenario: a cluster, how it is run, and the load on it."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, Interval, Seconds
from slimsched.serving.domain.cluster import Cluster, Fault, Host
from slimsched.serving.domain.profile import NoiseSource, ServiceCost, ServiceNoise
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.routers.autoscaler import AutoscaleOptions
from slimsched.serving.scheduler.scheduler import SchedulerOptions
from slimsched.serving.workload.load import Load, is_trace


class TelemetryOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often servers report, how late reports arrive, and how long a death or a hang goes unnoticed."""

    period_s: Interval = 0.1  # time between two reports of a server
    delay_s: Seconds = 0.005  # how late reports arrive
    detection_s: Seconds = 0.5  # time until a death is noticed
    silence_s: Seconds = 1.5  # time until a hang is noticed
    sensors: Literal["measured", "modelled"] = (
        "measured"  # live: ask the device, or add up busy time and profiles
    )


class Scenario(Struct, frozen=True, kw_only=True):
    """Everything a run needs, except the router and the seed."""

    name: str
    description: str = ""
    cluster: Cluster
    schedulers: tuple[SchedulerOptions, ...]
    """How each server's scheduler works."""
    gateway: GatewayOptions = GatewayOptions()
    telemetry: TelemetryOptions = TelemetryOptions()
    load: Load
    shares: tuple[float, ...] = ()
    """The models' shares of the requests; empty: equal shares."""
    faults: tuple[Fault, ...] = ()
    goal: Goal | None = None
    """The goal for routers that follow one; None: as much accuracy as the load allows."""
    autoscale: AutoscaleOptions | None = None
    """Limits on how many servers run, simulated or live; None: all of them, always."""
    hosts: tuple[Host | None, ...] = ()
    """The host of each server when it runs live; None if it can only be simulated."""
    costs: tuple[ServiceCost, ...] = ()
    """What each server's batches cost in service beyond its profile; empty: nothing."""
    noise: ServiceNoise = ServiceNoise()
    """How much batch times vary around the profile, in simulation."""
    devices: tuple[tuple[str, float], ...] = ()
    """The device of each server and its speed, so that profiles of further models can be found."""
    beside: str = ""
    """The folder of the scenario file."""

    def noises(self, seed: int) -> list[NoiseSource | None]:
        """Return the noise of each server; none where it is off or the pace was measured in service."""
        return [
            NoiseSource(self.noise, profile.spread, (seed, 104_729, server))
            if self.noise.is_on and not (self.costs and self.costs[server].pace)
            else None
            for server, profile in enumerate(self.cluster.profiles)
        ]

    def with_load(
        self,
        *,
        arrivals: str | None = None,
        rate_per_s: float | None = None,
        seconds: float | None = None,
        warmup_s: float | None = None,
        deadline_s: float | None = None,
    ) -> "Scenario":
        """Return the scenario with another load; what is not given stays the same.

        A trace that is given without a rate is played as it was recorded.
        """
        load = self.load
        if arrivals is not None and rate_per_s is None and is_trace(arrivals):
            load = load.replaying(arrivals, seconds)
            arrivals, seconds = None, None
        if arrivals is not None:
            load = replace(load, arrivals=arrivals, shape={}, as_recorded=False)
        if rate_per_s is not None:
            load = replace(load, rate_per_s=rate_per_s, as_recorded=False)
        others = {"seconds": seconds, "warmup_s": warmup_s, "deadline_s": deadline_s}
        load = replace(load, **{name: value for name, value in others.items() if value is not None})
        load.check()
        return replace(self, load=load)

    def for_clients(self) -> "Scenario":
        """Return the scenario with what clients are promised: early drops of late work, and priorities."""
        schedulers = tuple(
            replace(one, order="deadline", early_drop=True, priorities=True) for one in self.schedulers
        )
        return replace(self, schedulers=schedulers, gateway=replace(self.gateway, early_drop=True))

    def with_faults(self, faults: tuple[Fault, ...]) -> "Scenario":
        """Return the scenario with more faults on its timeline."""
        for fault in faults:
            if fault.server not in self.cluster.names:
                known = ", ".join(self.cluster.names[:8])
                raise ConfigError(f"scenario '{self.name}' has no server '{fault.server}'; it has {known}")
        return replace(self, faults=self.faults + faults)
