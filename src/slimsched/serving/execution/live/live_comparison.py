"""Compares routers on the same real servers, one after another, with measured accuracy and energy."""

from collections.abc import Callable, Sequence
from time import monotonic

from msgspec import Struct

from slimsched.serving.execution.live.example_set import ExampleSet
from slimsched.serving.execution.live.kept_engine import KeptEngine
from slimsched.serving.execution.live.local_engine import LocalEngine
from slimsched.serving.execution.live.power_meter import PowerMeter
from slimsched.serving.execution.live.run import run_live, specs_of
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.routing.registry import RouterMaker
from slimsched.serving.telemetry.summary import Summary


class LiveRow(Struct, frozen=True, kw_only=True):
    """One router's run: its summary, and figures that only a live run has."""

    router: str
    summary: Summary
    accuracy_on_images: float | None
    answered_meanwhile: int  # while requests still arrived
    energy_j: float  # of the whole device, from its counter; 0 where there is none
    wall_s: float
    dispatch_error_p99_s: float


async def compare_live(
    scenario: Scenario,
    runs: Sequence[tuple[str, Scenario]],
    examples: Sequence[ExampleSet],
    *,
    seed: int,
    meter: PowerMeter | None,
    make: RouterMaker,
    progress: Callable[[str], None],
) -> list[LiveRow]:
    """Start the servers once; run each (router, scenario with its load) on them with its own gateway."""
    zero_s = monotonic()
    engine = KeptEngine(LocalEngine(specs_of(scenario, zero_s)))
    rows = []
    await engine.open()
    try:
        for router, at in runs:
            progress(router)
            before = None if meter is None else meter.read(0.0)
            found = await run_live(
                at, router, examples, seed=seed, make=make, engine=engine, clock_zero_s=zero_s
            )
            after = None if meter is None else meter.read(0.0)
            spent_j = 0.0 if before is None or after is None else after.energy_j - before.energy_j
            passed_s = found.trace.summary.seconds
            if before is not None and after is not None:
                passed_s = after.at_s - before.at_s
            rows.append(
                LiveRow(
                    router=router,
                    summary=found.trace.summary,
                    accuracy_on_images=found.accuracy,
                    answered_meanwhile=int((found.trace.answers.answered_s <= at.load.seconds).sum()),
                    energy_j=spent_j,
                    wall_s=passed_s,
                    dispatch_error_p99_s=found.dispatch_error_p99_s,
                )
            )
    finally:
        await engine.close()
    return rows
