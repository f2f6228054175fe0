"""Does the simulator tell the truth? The same load live and simulated, side by side."""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.execution.live.event_loop import run
from slimsched.execution.live.run import run_live
from slimsched.execution.scenario import Scenario
from slimsched.execution.simulated.simulation import simulate
from slimsched.routing.fluid import capacity_per_s
from slimsched.telemetry.summary import Summary

FIGURES = ("latency_mean_s", "latency_p99_s", "throughput_per_s", "accuracy", "energy_j_per_request")


class Validated(Struct, frozen=True, kw_only=True):
    """One load: figures live and simulated, and the simulator's relative error."""

    load: float
    rate_per_s: float
    requests: int
    live: dict[str, float]
    simulated: dict[str, float]
    error: dict[str, float]
    dispatch_error_p99_s: float
    accuracy_on_images: float | None


def validate(
    scenario: Scenario,
    router: str,
    loads: Sequence[float],
    images: NDArray[np.uint8],
    labels: NDArray[np.int64] | None,
    *,
    seconds: float,
    seed: int,
    progress: Callable[[str], None],
) -> list[Validated]:
    """Run each share of the full-width capacity live, then simulate the same arrivals."""
    capacity = capacity_per_s(scenario.cluster, (1.0,) * 4)
    found = []
    for load in loads:
        at = scenario.with_load(rate_per_s=load * capacity, seconds=seconds)
        progress(f"live at {100 * load:.0f} % of capacity ({load * capacity:.0f} requests/s)")
        live = run(run_live(at, router, images, labels, seed=seed))
        progress(f"simulating {100 * load:.0f} %")
        same = simulate(at, router, seed=seed, drain=True, images=len(images)).summary
        real, model = _figures(live.trace.summary), _figures(same)
        found.append(
            Validated(
                load=load,
                rate_per_s=load * capacity,
                requests=live.trace.summary.arrived,
                live=real,
                simulated=model,
                error={name: model[name] / real[name] - 1 for name in FIGURES},
                dispatch_error_p99_s=live.dispatch_error_p99_s,
                accuracy_on_images=live.accuracy,
            )
        )
    return found


def _figures(row: Summary) -> dict[str, float]:
    return {
        "latency_mean_s": row.latency_mean_s,
        "latency_p99_s": row.latency_p99_s,
        "throughput_per_s": row.completed / row.seconds,
        "accuracy": row.accuracy_prior,
        "energy_j_per_request": row.energy_j_per_request,
    }
