"""Compares routers on the same real servers, one after another, with measured accuracy and energy."""

from collections.abc import Callable, Sequence
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from slimsched.serving.execution.live.example_set import ExampleSet
from slimsched.serving.execution.live.kept_engine import KeptEngine
from slimsched.serving.execution.live.local_engine import LocalEngine
from slimsched.serving.execution.live.power_meter import PowerMeter
from slimsched.serving.execution.live.run import run_live, specs_of
from slimsched.serving.routers.registry import RouterMaker
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.telemetry.meter import Summary, Trace


class Turn(Struct, frozen=True):
    """One run to come: a router, and a scenario with its load."""

    router: str
    scenario: Scenario
    seed: int


class LiveRow(Struct, frozen=True, kw_only=True):
    """One router's run: its trace, and figures that only a live run has."""

    router: str
    trace: Trace
    accuracy_on_images: float | None
    answered_meanwhile: int  # while requests still arrived
    energy_j: float  # of the whole device, from its counter; 0 where there is none
    wall_s: float
    dispatch_error_p99_s: float

    @property
    def summary(self) -> Summary:
        """The run's figures, as a simulated run has them."""
        return self.trace.summary

    def energy_j_per_request(self, idle_w: float) -> float:
        """Energy above idle per answer, by the counter."""
        return max(0.0, self.energy_j - idle_w * self.wall_s) / max(1, self.summary.completed)

    def measured(self, idle_w: float) -> Trace:
        """Return the trace with accuracy and energy as measured, where they were."""
        summary = self.summary
        if self.accuracy_on_images is not None:
            summary = replace(summary, accuracy=self.accuracy_on_images)
        if self.energy_j > 0:
            energy_j = self.energy_j_per_request(idle_w)
            summary = replace(summary, energy_j_per_request=energy_j, energy_source="counter of the device")
        return replace(self.trace, summary=summary)


def in_turn(routers: Sequence[str], scenario: Scenario, *, seed: int, rounds: int) -> list[Turn]:
    """Every router in every round; every other round runs backwards, so that drift touches all alike."""
    turns = []
    for number in range(rounds):
        order = routers if number % 2 == 0 else routers[::-1]
        turns += [Turn(router, scenario, seed + number) for router in order]
    return turns


async def compare_live(
    scenario: Scenario,
    turns: Sequence[Turn],
    examples: Sequence[ExampleSet],
    *,
    meter: PowerMeter | None,
    make: RouterMaker,
    progress: Callable[[str], None],
) -> list[LiveRow]:
    """Start the servers once; take the turns on them, each with its own gateway."""
    zero_s = monotonic()
    engine = KeptEngine(LocalEngine(specs_of(scenario, zero_s)))
    rows = []
    await engine.open()
    try:
        for turn in turns:
            progress(turn.router)
            before = None if meter is None else meter.read(0.0)
            found = await run_live(
                turn.scenario,
                turn.router,
                examples,
                seed=turn.seed,
                make=make,
                engine=engine,
                clock_zero_s=zero_s,
            )
            after = None if meter is None else meter.read(0.0)
            spent_j = 0.0 if before is None or after is None else after.energy_j - before.energy_j
            passed_s = found.trace.summary.seconds
            if before is not None and after is not None:
                passed_s = after.at_s - before.at_s
            answered_s = found.trace.answers.answered_s
            rows.append(
                LiveRow(
                    router=turn.router,
                    trace=found.trace,
                    accuracy_on_images=found.accuracy,
                    answered_meanwhile=int((answered_s <= turn.scenario.load.seconds).sum()),
                    energy_j=spent_j,
                    wall_s=passed_s,
                    dispatch_error_p99_s=found.dispatch_error_p99_s,
                )
            )
    finally:
        await engine.close()
    return rows
