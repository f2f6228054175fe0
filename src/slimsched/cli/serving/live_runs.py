"""Live runs of several routers, in turn on the same servers: the examples, the meter and the event loop."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slimsched.cli.failure import need
from slimsched.serving.execution.scenario import Scenario

if TYPE_CHECKING:
    from slimsched.serving.execution.live.live_comparison import LiveRow


def run_in_turn(
    scenario: Scenario,
    routers: Sequence[str],
    *,
    seed: int,
    rounds: int,
    data: Path | None,
    progress: Callable[[str], None],
) -> "list[LiveRow]":
    """Run every router in every round; return the rows in that order.

    `progress` is told what is sent, then which router runs. Energy is the GPU's own counter where the servers
    share one.
    """
    need("torch")
    from slimsched.cli.serving.examples import describe, examples_of
    from slimsched.serving.execution.live.event_loop import run
    from slimsched.serving.execution.live.live_comparison import compare_live, in_turn
    from slimsched.serving.execution.live.power_meter import open_nvml
    from slimsched.serving.routing.registry import make_router

    examples = examples_of(scenario.cluster.models, data)
    gpus = {host.gpu for host in scenario.hosts if host is not None and host.kind == "cuda"}
    progress(f"{describe(examples)}; starting the servers")
    work = compare_live(
        scenario,
        in_turn(routers, scenario, seed=seed, rounds=rounds),
        examples,
        meter=open_nvml(min(gpus)) if len(gpus) == 1 else None,
        make=make_router,
        progress=progress,
    )
    return run(work)
