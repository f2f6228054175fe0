"""The plans worth running: no other is at least as accurate for no more arithmetic."""

from msgspec import Struct

from slimsched.models.figures import ModelFigures
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelSpec


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """A plan, what it costs and what it is worth."""

    plan: str
    macs: int
    accuracy_percent: float


def all_points(spec: ModelSpec, figures: ModelFigures, quality: QualityTable) -> list[ParetoPoint]:
    """All plans, cheapest first; of equally cheap ones the most accurate first."""
    points = [
        ParetoPoint(
            plan=spec.text(plan),
            macs=sum(figures.steps[spec.step(plan[:length])].macs for length in range(1, len(plan) + 1)),
            accuracy_percent=round(100 * quality.accuracy(plan), 2),
        )
        for plan in spec.plans
    ]
    return sorted(points, key=lambda point: (point.macs, -point.accuracy_percent))


def pareto_set(points: list[ParetoPoint]) -> list[ParetoPoint]:
    """Those that no other beats, cheapest first."""
    kept: list[ParetoPoint] = []
    for point in points:
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept
