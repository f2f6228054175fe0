"""The autoscaler: a state machine that reads the load and decides how many servers run.

It adds a server when the backlog per server has been too long for a while, or a goal has been missed for a
while. It removes one when the others could have carried the load easily for long enough. It takes one step at
a time, waits until that step is complete, and stays within the operator's limits.

A driver tells it the load at regular times, and starts and stops servers as it asks.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, Count, CountOrZero, Seconds, check
from slimsched.core.log import Observer
from slimsched.serving.domain.cluster import AUTOSCALER_NAME

if TYPE_CHECKING:
    from slimsched.serving.gateway.gateway import Gateway

EASE = 0.6
"""Highest utilization that the remaining servers may reach when one leaves."""

MISSED_SHARE = 0.01
"""Mean accuracy counts as missed when it is this share below its floor, p99 when ten times this above."""


class AutoscaleOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and waiting times; `max` 0 means every server of the scenario."""

    min: Count = 1  # least servers
    max: CountOrZero = 0  # most servers; 0: all of the scenario
    up_backlog_s: Seconds = 0.25  # start another server when the backlog per server is longer, in device time
    up_after_s: Seconds = 1.0  # how long that backlog, or a missed goal, must last
    down_idle_s: Seconds = 30.0  # how long the others must have been able to carry the load before one leaves
    cooldown_s: Seconds = 5.0  # least time between two steps
    start_s: Seconds = 2.0  # time a simulated server takes to start, before it loads anything

    def limited_to(self, servers: int) -> "AutoscaleOptions":
        """Check the limits for a scenario with `servers` servers and fill in `max`."""
        most = self.max or servers
        if not 1 <= self.min <= most <= servers:
            raise ConfigError(
                f"[autoscale] min is {self.min} and max {most}, with {servers} servers in the scenario; "
                "give 1 ≤ min ≤ max ≤ servers"
            )
        return replace(self, max=most)


class ReportedLoad(Struct, frozen=True, kw_only=True):
    """The load on one gateway, or on all gateways together."""

    backlog_s: float = 0.0  # device time of all requests that are sent or wait
    utilization: float = 0.0  # mean over the servers that are up
    missed: str = ""  # the goal that is missed, in words


class LoadReported(Struct, frozen=True, kw_only=True, tag=True):
    """Event: the current load; `wanted` servers were asked for and `up` of them serve."""

    load: ReportedLoad
    wanted: int
    up: int


class Scale(Struct, frozen=True, kw_only=True, tag=True):
    """Command: run this many servers from now on."""

    servers: int
    reason: str


class Autoscaler:
    """Remembers how long the cluster has been crowded or idle, and decides the next step."""

    def __init__(self, options: AutoscaleOptions) -> None:
        self.options = options
        self._crowded_s = self._idle_s = inf  # since when it is; never, if it is not
        self._stepped_s = -inf

    def handle(self, event: LoadReported, *, now_s: float) -> list[Scale]:
        """Take the load into account and return the step to take, if any."""
        step = self.decide(event.load, wanted=event.wanted, up=event.up, now_s=now_s)
        return [] if step is None else [step]

    def validate(self) -> None:
        """Check that it is not crowded and idle at once, nor since before its last step; for tests."""
        since = [at_s for at_s in (self._crowded_s, self._idle_s) if at_s < inf]
        check(len(since) < 2, "crowded and idle at once, since {}", since)
        check(all(at_s >= self._stepped_s for at_s in since), "stepped at {}, {}", self._stepped_s, since)

    def decide(self, load: ReportedLoad, *, wanted: int, up: int, now_s: float) -> Scale | None:
        """Return the next step, if any; `wanted` servers were asked for and `up` of them serve."""
        options = self.options
        each_s, others = load.backlog_s / max(1, up), up - 1
        why = f"backlog of {each_s:.2f} s a server" if each_s > options.up_backlog_s else load.missed
        others_could = (
            others > 0
            and load.utilization * up / others < EASE
            and load.backlog_s / others < 0.5 * options.up_backlog_s
        )
        self._crowded_s = min(self._crowded_s, now_s) if why else inf
        self._idle_s = min(self._idle_s, now_s) if others_could and not why else inf
        if wanted < options.min:
            return self._step(options.min, "below the least", now_s)
        if up < wanted or now_s - self._stepped_s < options.cooldown_s:
            return None
        if wanted < options.max and now_s - self._crowded_s >= options.up_after_s:
            return self._step(wanted + 1, why, now_s)
        if wanted > options.min and now_s - self._idle_s >= options.down_idle_s:
            return self._step(wanted - 1, f"idle for {options.down_idle_s:g} s", now_s)
        return None

    def _step(self, servers: int, reason: str, now_s: float) -> Scale:
        self._stepped_s, self._crowded_s, self._idle_s = now_s, inf, inf
        return Scale(servers=servers, reason=reason)


def load_of(gateway: "Gateway") -> ReportedLoad:
    """Return the current load of a gateway."""
    seen = gateway.seen
    sent, sent_s = float(seen.outstanding.sum()), float(seen.backlog_s.sum())
    waiting_s = seen.fifo * (sent_s / sent if sent else 0.0)
    alive = seen.alive_ids
    return ReportedLoad(
        backlog_s=sent_s + waiting_s,
        utilization=float(seen.utilization[alive].mean()) if alive else 0.0,
        missed=_missed(gateway),
    )


def together(loads: Sequence[ReportedLoad]) -> ReportedLoad:
    """Add up the loads of several gateways that share their servers and hear the same telemetry."""
    return ReportedLoad(
        backlog_s=sum(load.backlog_s for load in loads),
        utilization=max((load.utilization for load in loads), default=0.0),
        missed=next((load.missed for load in loads if load.missed), ""),
    )


def _missed(gateway: "Gateway") -> str:
    """Describe the goal that the gateway's router misses now; empty if it misses none."""
    from slimsched.serving.routers.goal import GoalRouter  # scenarios are also read where no gateway runs
    from slimsched.serving.routers.guard import GuardedRouter

    router = gateway.router
    watched = router.router if isinstance(router, GuardedRouter) else None
    if not isinstance(watched, GoalRouter) or not gateway.in_system:
        return ""
    for model in watched.active:
        goal, meter = model.goal, model.meter
        for limit in goal.latency_limits:
            figure_s = meter.latency_s(limit.figure)
            if figure_s is not None and figure_s > limit.limit_s * (1 + 10 * MISSED_SHARE):
                return f"{limit.figure} {1e3 * figure_s:.0f} ms, goal {1e3 * limit.limit_s:.0f} ms"
        floor = goal.min_accuracy * (1 - MISSED_SHARE)
        if floor and meter.accuracy is not None and meter.accuracy < floor:
            return f"accuracy {100 * meter.accuracy:.1f} %, goal {100 * goal.min_accuracy:.1f} %"
    return ""


LOOK_S = 0.25
"""Time between two looks at the load; the roster on Ray uses the same time."""


class Servers(Protocol):
    """The servers that can be started and stopped."""

    def is_up(self, server: int) -> bool:
        """Whether a server takes work."""

    def start_server(self, server: int) -> bool:
        """Begin to start a server; return False while its last life has not ended."""

    def drain_server(self, server: int) -> None:
        """Let a server finish its work, then stop it."""


class Scaling:
    """Tells the autoscaler the load, and starts and stops servers as it asks; a driver calls `look`."""

    def __init__(
        self,
        options: AutoscaleOptions,
        fleet: Servers,
        load: Callable[[], ReportedLoad],
        observers: Sequence[Observer],
    ) -> None:
        self._autoscaler = Autoscaler(options)
        self._options, self._fleet, self._load, self._observers = options, fleet, load, observers
        self._wanted = set(range(options.min))

    def look(self, now_s: float) -> None:
        """Tell the autoscaler the load, show observers what it decided, then carry that out."""
        up = sum(self._fleet.is_up(server) for server in self._wanted)
        event = LoadReported(load=self._load(), wanted=len(self._wanted), up=up)
        steps = self._autoscaler.handle(event, now_s=now_s)
        for observer in self._observers:
            observer.observe(now_s, AUTOSCALER_NAME, event, steps)
        for step in steps:
            self._scale(step.servers)

    def _scale(self, servers: int) -> None:
        """Start the first servers that do not run, or drain the last ones that do."""
        for server in range(self._options.max):
            if len(self._wanted) >= servers:
                break
            if server not in self._wanted and self._fleet.start_server(server):
                self._wanted.add(server)
        for server in sorted(self._wanted)[servers:]:
            self._wanted.discard(server)
            self._fleet.drain_server(server)
