"""Validates the simulator: runs the same load live and simulated, and compares the figures.

It also measures what serving costs beyond the profiles, and what the gateway's own work costs.
"""

from collections.abc import Callable, Sequence
from time import thread_time

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.profile import ALONE, PACE_S, ServiceCost
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.gateway.messages import GatewayCost, RequestsArrived, SegmentFinished, requests_in
from slimsched.serving.live.wire import run
from slimsched.serving.measure.examples import ExampleSet
from slimsched.serving.measure.live_runs import LiveResult, run_live
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Summary

# -- Measures what serving costs beyond the profiles, by observing a live run.
#
# A profile is measured one key at a time on an otherwise idle core. In service, a batch shares its core with
# messages, other servers and other programs, and its caches are cold.

ENOUGH = 30
"""Batches that a server must have run before its cost is estimated."""


class Calibration:
    """Collects each server's batch times and the times that its profile predicts."""

    def __init__(self, cluster: Cluster) -> None:
        self._profiles = cluster.profiles
        self._batches: list[list[tuple[float, float, float]]] = [[] for _ in cluster.names]

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Record a finished batch."""
        if isinstance(event, SegmentFinished):
            alone_s = self._profiles[event.server].latency_s(event.key, event.size)
            self._batches[event.server].append((now_s - event.busy_s, alone_s, event.busy_s))

    def costs(self) -> tuple[ServiceCost, ...]:
        """Estimate overhead, slowdown and pace of each server by least squares over its batches.

        The model is busy = overhead_s + slowdown × profile, with a slowdown of at least 1. If the overhead
        would be negative, only a slowdown is fitted, which may then be below 1.
        """
        return tuple(_fit(np.array(rows)) if len(rows) >= ENOUGH else ALONE for rows in self._batches)


def _fit(rows: NDArray[np.float64]) -> ServiceCost:
    began_s, alone_s, busy_s = rows.T
    slowdown = max(1.0, float(np.polyfit(alone_s, busy_s, 1)[0]))
    overhead_s = float(np.mean(busy_s - slowdown * alone_s))
    if overhead_s < 0.0:
        overhead_s, slowdown = 0.0, float(busy_s.sum() / alone_s.sum())
    pace = _pace(began_s, busy_s, overhead_s + slowdown * alone_s)
    return ServiceCost(slowdown=slowdown, overhead_s=overhead_s, pace=pace)


def _pace(
    began_s: NDArray[np.float64], busy_s: NDArray[np.float64], usual_s: NDArray[np.float64]
) -> tuple[float, ...]:
    """How much longer than usual batches took, over time; 1 for periods without batches."""
    bins = (began_s / PACE_S).astype(int)
    bins -= bins.min()
    took_s, expected_s = np.bincount(bins, busy_s), np.bincount(bins, usual_s)
    ratio = np.divide(took_s, expected_s, out=np.ones(len(took_s)), where=expected_s > 0.0)
    return tuple(round(float(one), 4) for one in ratio)


# -- Measures what a live gateway's own work costs, by observing a run: processor time per event and request.
#
# The gateway handles events, sends blocks and takes answers apart in one thread, so the processor time of
# that thread is what the gateway costs. In `slim validate` the thread also makes the requests, in place of
# reading them over HTTP.

Values = NDArray[np.float64]

SLICE_S = 0.1
"""How long each slice of the run is that events, requests and processor time are counted in."""

USUAL_RATIO = 0.2
"""What a request costs, over what an event costs: 16 and 77 µs on a Xeon where both could be told apart."""

LEANING = 0.1
"""How much the usual ratio counts, as a share of the slices."""


class GatewayTime:
    """Counts the gateway's events, requests and processor time in each slice of a run.

    It must observe in the gateway's thread, and `clock` reads that thread's processor time. Counting begins
    with the first request, so what it takes to start servers does not count.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._slices: list[tuple[float, int, int]] = []  # processor time, events, requests
        self._is_on = False
        self._events = self._requests = 0
        self._began_s = self._end_s = 0.0

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Count an event; at the end of a slice, read the clock."""
        if machine != GATEWAY_NAME:
            return
        if self._is_on:
            self._events += 1
            self._requests += requests_in(event)
            if now_s < self._end_s:
                return
            self._slices.append((self._clock() - self._began_s, self._events, self._requests))
        elif not isinstance(event, RequestsArrived):
            return
        self._is_on, self._events, self._requests = True, 0, 0
        self._began_s, self._end_s = self._clock(), now_s + SLICE_S

    def cost(self) -> GatewayCost:
        """Fit what an event and a request cost to the slices."""
        if not self._slices:
            return GatewayCost()
        return fit_cost(*np.array(self._slices, dtype=np.float64).T)


def fit_cost(busy_s: Values, events: Values, requests: Values) -> GatewayCost:
    """Fit event_s × events + request_s × requests to the time that slices of a run took; neither is negative.

    Where most events have one request, the two can hardly be told apart. So the fit leans towards a usual
    ratio of the two, and more slices that differ count more than it.
    """
    from scipy.optimize import nnls  # imported here because it takes long

    counts = np.column_stack([events, requests])
    usual = np.array([1.0, USUAL_RATIO])
    usual *= busy_s.sum() / max(1.0, (counts @ usual).sum())
    weights = LEANING * np.diag(np.linalg.norm(counts, axis=0))
    (event_s, request_s), _ = nnls(np.vstack([counts, weights]), np.append(busy_s, weights @ usual))
    return GatewayCost(event_s=float(event_s), request_s=float(request_s))


FIGURES = ("latency_mean_s", "latency_p99_s", "throughput_per_s", "accuracy", "energy_j_per_request")

CALIBRATION_SHARE = 0.5
"""The load of the calibration, as a share of the largest load asked for, which the whole path can carry."""


class Extra(Struct, frozen=True, kw_only=True):
    """What serving costs beyond the profiles: the servers' batches, the gateway's own work, and a message."""

    costs: tuple[ServiceCost, ...]
    gateway: GatewayCost
    message_s: float


class Validated(Extra, frozen=True, kw_only=True):
    """One load: figures live and simulated, and the simulator's relative error.

    The live run measured its own extra costs; the simulation did not know them. `error_at_own_speed` is the
    error of a simulation with these costs, so it leaves out changes of the machine's speed since the
    calibration.
    """

    load: float
    rate_per_s: float
    requests: int
    live: dict[str, float]
    simulated: dict[str, float]
    error: dict[str, float]
    error_at_own_speed: dict[str, float]
    dispatch_error_p99_s: float
    accuracy_on_images: float | None


class Validation(Extra, frozen=True, kw_only=True):
    """The cost of serving beyond the profiles, measured in a separate run, and how well it predicts."""

    loads: list[Validated]


class Validator(Struct, frozen=True, kw_only=True):
    """Runs a scenario live and simulated under one router."""

    scenario: Scenario
    router: str
    examples: Sequence[ExampleSet]
    seconds: float
    seed: int
    progress: Callable[[str], None]

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the cluster can serve if every model runs its widest plan."""
        cluster = self.scenario.cluster
        shares = self.scenario.shares or [1.0 / len(cluster.models)] * len(cluster.models)
        rates = [capacity_per_s(cluster, model.spec.widest, model.number) for model in cluster.models]
        return 1.0 / sum(share / rate for share, rate in zip(shares, rates, strict=True))

    def validate(self, loads: Sequence[float], *, calibrate: bool) -> Validation:
        """Measure the cost of serving, or take the scenario's without `calibrate`; then predict each load."""
        link = self.scenario.cluster.gateway_link
        extra = Extra(
            costs=self.scenario.costs, gateway=self.scenario.gateway.cost, message_s=2 * link.latency_s
        )
        if calibrate:
            self.progress("measuring what serving costs beyond the profiles")
            _, extra = self._live(CALIBRATION_SHARE * max(loads), self.seed + 1)
        return Validation(**asdict(extra), loads=[self._validate(load, extra) for load in loads])

    def _validate(self, load: float, extra: Extra) -> Validated:
        """Run live at this share of the widest plans' capacity, and simulate the same arrivals."""
        self.progress(f"live at {100 * load:.0f} % of capacity ({load * self.capacity_per_s:.0f} requests/s)")
        live, own = self._live(load, self.seed)
        self.progress(f"simulating {100 * load:.0f} %")
        real = _figures(live.trace.summary)
        model, at_own_speed = self._simulated(load, extra), self._simulated(load, own)
        return Validated(
            **asdict(own),
            load=load,
            rate_per_s=load * self.capacity_per_s,
            requests=live.trace.summary.arrived,
            live=real,
            simulated=model,
            error={name: model[name] / real[name] - 1 for name in FIGURES},
            error_at_own_speed={name: at_own_speed[name] / real[name] - 1 for name in FIGURES},
            dispatch_error_p99_s=live.dispatch_error_p99_s,
            accuracy_on_images=live.accuracy,
        )

    def _live(self, load: float, seed: int) -> tuple[LiveResult, Extra]:
        calibration, gateway = Calibration(self.scenario.cluster), GatewayTime()
        observers = (calibration, gateway)
        live = run(run_live(self._at(load), self.router, self.examples, seed=seed, observers=observers))
        return live, Extra(costs=calibration.costs(), gateway=gateway.cost(), message_s=live.message_s)

    def _simulated(self, load: float, extra: Extra) -> dict[str, float]:
        options = replace(self.scenario.gateway, **asdict(extra.gateway))
        at = replace(self._at(load), costs=extra.costs, gateway=options)
        sizes = [len(one) for one in self.examples]
        same = simulate(at, self.router, seed=self.seed, drain=True, sizes=sizes)
        return _figures(same.summary)

    def _at(self, load: float) -> Scenario:
        return self.scenario.with_load(rate_per_s=load * self.capacity_per_s, seconds=self.seconds)


def _figures(row: Summary) -> dict[str, float]:
    return {
        "latency_mean_s": row.latency_mean_s,
        "latency_p99_s": row.latency_p99_s,
        "throughput_per_s": row.completed / row.seconds,
        "accuracy": row.accuracy_prior,
        "energy_j_per_request": row.energy_j_per_request,
    }
