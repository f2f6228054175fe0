"""One router's runs, compared with others': mean figures over seeds, with their intervals."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from slimsched.core.statistics import mean_of
from slimsched.serving.telemetry.meter import Summary, Trace


class Compared(Struct, frozen=True, kw_only=True):
    """One router: its mean figures over seeds, half the 95 % interval of each, and the first seed's trace.

    `runs` has the figures of each seed.
    """

    summary: Summary
    ci95: dict[str, float]
    trace: Trace
    runs: tuple[Summary, ...] = ()


def gather(traces: Sequence[Trace]) -> Compared:
    """Average every figure over the runs of one router."""
    rows = [msgspec.structs.asdict(trace.summary) for trace in traces]
    mean, ci95 = dict(rows[0]), {}
    for name, first in rows[0].items():
        if isinstance(first, float | int) and len(rows) > 1:
            over_seeds = mean_of([row[name] for row in rows])
            mean[name] = over_seeds.value if isinstance(first, float) else round(over_seeds.value)
            ci95[name] = over_seeds.ci95
    runs = tuple(trace.summary for trace in traces)
    return Compared(summary=Summary(**mean), ci95=ci95, trace=traces[0], runs=runs)
