"""Validates the simulator: runs the same load live and simulated, and compares the figures."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.domain.profile import ServiceCost
from slimsched.serving.execution.live.calibration import Calibration
from slimsched.serving.execution.live.event_loop import run
from slimsched.serving.execution.live.example_set import ExampleSet
from slimsched.serving.execution.live.gateway_time import GatewayTime
from slimsched.serving.execution.live.run import LiveResult, run_live
from slimsched.serving.gateway.bounds import capacity_per_s
from slimsched.serving.gateway.messages import GatewayCost
from slimsched.serving.routers.registry import RouterMaker, make_router
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.meter import Summary

FIGURES = ("latency_mean_s", "latency_p99_s", "throughput_per_s", "accuracy", "energy_j_per_request")

CALIBRATION_SHARE = 0.5
"""The load of the calibration, as a share of the largest load asked for, which the whole path can carry."""


class Validated(Struct, frozen=True, kw_only=True):
    """One load: figures live and simulated, and the simulator's relative error.

    The live run measured `costs`, `gateway` and `message_s`; the simulation did not know them.
    `error_at_own_speed` is the error of a simulation with these costs, so it leaves out changes of the
    machine's speed since the calibration.
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
    costs: tuple[ServiceCost, ...]
    gateway: GatewayCost
    message_s: float


class Validation(Struct, frozen=True, kw_only=True):
    """The cost of serving beyond the profiles, measured in a separate run, and how well it predicts."""

    costs: tuple[ServiceCost, ...]
    gateway: GatewayCost
    message_s: float
    loads: list[Validated]


class _Speed(Struct, frozen=True, kw_only=True):
    """What serving costs beyond the profiles: the servers' batches, and the gateway's own work."""

    costs: tuple[ServiceCost, ...]
    gateway: GatewayCost


class Validator:
    """Runs a scenario live and simulated under one router."""

    def __init__(
        self,
        scenario: Scenario,
        router: str,
        examples: Sequence[ExampleSet],
        *,
        seconds: float,
        seed: int,
        progress: Callable[[str], None],
        make: RouterMaker = make_router,
    ) -> None:
        self._make = make
        self._scenario, self._router, self._examples = scenario, router, examples
        self._seconds, self._seed, self._progress = seconds, seed, progress
        self._capacity_per_s = _widest_per_s(scenario)

    def validate(self, loads: Sequence[float], *, calibrate: bool) -> Validation:
        """Measure the cost of serving, or take the scenario's without `calibrate`; then predict each load."""
        speed = _Speed(costs=self._scenario.costs, gateway=self._scenario.gateway.cost)
        message_s = 2 * self._scenario.cluster.gateway_link.latency_s
        if calibrate:
            self._progress("measuring what serving costs beyond the profiles")
            live, speed = self._live(CALIBRATION_SHARE * max(loads), self._seed + 1)
            message_s = live.message_s
        return Validation(
            costs=speed.costs,
            gateway=speed.gateway,
            message_s=message_s,
            loads=[self._validate(load, speed) for load in loads],
        )

    def _validate(self, load: float, speed: _Speed) -> Validated:
        """Run live at this share of the widest plans' capacity, and simulate the same arrivals."""
        self._progress(
            f"live at {100 * load:.0f} % of capacity ({load * self._capacity_per_s:.0f} requests/s)"
        )
        live, own = self._live(load, self._seed)
        self._progress(f"simulating {100 * load:.0f} %")
        real = _figures(live.trace.summary)
        model, at_own_speed = self._simulated(load, speed), self._simulated(load, own)
        return Validated(
            load=load,
            rate_per_s=load * self._capacity_per_s,
            requests=live.trace.summary.arrived,
            live=real,
            simulated=model,
            error={name: model[name] / real[name] - 1 for name in FIGURES},
            error_at_own_speed={name: at_own_speed[name] / real[name] - 1 for name in FIGURES},
            dispatch_error_p99_s=live.dispatch_error_p99_s,
            accuracy_on_images=live.accuracy,
            costs=own.costs,
            gateway=own.gateway,
            message_s=live.message_s,
        )

    def _live(self, load: float, seed: int) -> tuple[LiveResult, _Speed]:
        calibration, gateway = Calibration(self._scenario.cluster), GatewayTime()
        work = run_live(
            self._at(load),
            self._router,
            self._examples,
            seed=seed,
            observers=(calibration, gateway),
            make=self._make,
        )
        return run(work), _Speed(costs=calibration.costs(), gateway=gateway.cost())

    def _simulated(self, load: float, speed: _Speed) -> dict[str, float]:
        options = replace(
            self._scenario.gateway, event_s=speed.gateway.event_s, request_s=speed.gateway.request_s
        )
        at = replace(self._at(load), costs=speed.costs, gateway=options)
        sizes = [len(one) for one in self._examples]
        same = simulate(at, self._router, seed=self._seed, drain=True, sizes=sizes, make=self._make)
        return _figures(same.summary)

    def _at(self, load: float) -> Scenario:
        return self._scenario.with_load(rate_per_s=load * self._capacity_per_s, seconds=self._seconds)


def _widest_per_s(scenario: Scenario) -> float:
    """Requests per second that the cluster can serve if every model runs its widest plan."""
    cluster = scenario.cluster
    shares = scenario.shares or [1.0 / len(cluster.models)] * len(cluster.models)
    rates = [capacity_per_s(cluster, model.spec.widest, model.number) for model in cluster.models]
    return 1.0 / sum(share / rate for share, rate in zip(shares, rates, strict=True))


def _figures(row: Summary) -> dict[str, float]:
    return {
        "latency_mean_s": row.latency_mean_s,
        "latency_p99_s": row.latency_p99_s,
        "throughput_per_s": row.completed / row.seconds,
        "accuracy": row.accuracy_prior,
        "energy_j_per_request": row.energy_j_per_request,
    }
